"""The tasks of a model: predict, generate, trace, and compute gradients."""

from qkv.models.tasks._chat import answer_prompt, chat
from qkv.models.tasks._head_weights import head_weights
from qkv.models.tasks._knockout import Knockout, Masked
from qkv.models.tasks._sampling import Measured, Sampling
from qkv.models.tasks._spelling import Spelling, decode_function
from qkv.models.tasks._together import Together
