"""Analysis of attention heads: numbers and sentences about the tokens that a head attends to."""

from qkv.see.analysis._interventions import (
    COUNT as COUNT,
    Opening as Opening,
    moved_in_both as moved_in_both,
    opening_of as opening_of,
    removal_of as removal_of,
)
from qkv.see.analysis._view_inputs import (
    heads_from as heads_from,
    is_ids as is_ids,
    model_of as model_of,
    one_text as one_text,
    positions_in as positions_in,
    positions_of as positions_of,
    readable_trace as readable_trace,
    reader_for as reader_for,
    reader_of as reader_of,
    texts_of as texts_of,
    trace_of as trace_of,
)
from qkv.see.analysis._words import (
    FUNCTION_WORDS as FUNCTION_WORDS,
    LEFT_OVER as LEFT_OVER,
    explain_tokens as explain_tokens,
    is_special as is_special,
    labels_of as labels_of,
    name_of as name_of,
    quote_words as quote_words,
    run_name as run_name,
    went_without as went_without,
    word_spans as word_spans,
)
