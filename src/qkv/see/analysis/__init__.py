"""Analysis of attention heads: numbers and sentences about the tokens that a head attends to."""

from qkv.see.analysis._interventions import COUNT, Opening, opening_of, removal_of
from qkv.see.analysis._units import UNITS, Unit, is_content, units_of
from qkv.see.analysis._view_inputs import (
    guesser_of,
    heads_from,
    is_ids,
    model_of,
    one_text,
    positions_in,
    positions_of,
    readable_trace,
    reader_for,
    reader_of,
    texts_of,
    trace_of,
)
from qkv.see.analysis._words import (
    FUNCTION_WORDS,
    LEFT_OVER,
    explain_tokens,
    labels_of,
    name_of,
    quote_words,
    run_name,
    show_blanks,
    went_without,
    word_spans,
)
