"""Linear layers, norms, activations and the loss, each with its gradients, and AdamW."""

from qkv.ops._blocks import BLOCK_KINDS, BlockMatrix, blocks_size, pack_blocks
from qkv.ops._int8_rows import MAX_INT8, exact_rows, from_rows, int8_weight, like_weight, to_rows
from qkv.ops._lazy import LazyMatrix, StoredMatrix
from qkv.ops._norm import norm_grad, normalize
from qkv.ops._training import adamw, cross_entropy, gradient_norm
