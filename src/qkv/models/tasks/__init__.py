"""The tasks of a model: predict, generate, trace, and compute gradients."""

from qkv.models.tasks._head_weights import head_weights as head_weights
from qkv.models.tasks._sampling import Measured as Measured, Sampling as Sampling
from qkv.models.tasks._spelling import Spelling as Spelling, decode_function as decode_function
