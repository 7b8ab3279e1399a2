"""What the card must say of each defective kernel of the third trial."""

from . import third
from .table import Entry

THIRD = [
    Entry(
        third.alibi_by_columns,
        "LSE",
        "under causal, ALiBi is slope * j: the output is right, and the LSE lacks slope * i",
        named="added the slope times the number of the key",
    ),
    Entry(
        third.window_of_first_row,
        "q_offset",
        "the first key that a window reads is found from the offset of batch row 0 for all rows",
        named="the left side of the window, computed with the q_offset of the first batch",
    ),
    Entry(
        third.splits_publish_sinks,
        "sinks",
        "a split without visible keys publishes the sink as its LSE, and so counts it again",
        named="sinks once more for each of 4 splits of the keys, after the first, that a row does",
    ),
    Entry(
        third.row_sum_in_half,
        "half precision",
        "the row sum is accumulated key by key in half precision",
        named="added up the weights of a row key by key in half precision",
    ),
    Entry(
        third.query_in_memory_order,
        "strides",
        "up to eight queries are read in the order of memory",
        named="read queries in memory order and ignored their strides",
    ),
    Entry(
        third.weights_of_their_time,
        "weights",
        "the returned weights of earlier tiles (8 keys) are not rescaled; the output is right",
        named="the weights of earlier tiles of 8 keys were not rescaled to the last maximum",
    ),
    Entry(
        third.grouped,
        "gradient",
        "the gradient of query head h is added to key head h % Hkv",
        gradient=third.grouped_backward,
        named="added up query heads 0 1 0 1 instead of 0 0 1 1",
    ),
]
