"""The activation functions, computed by the math module, for the tests of all packages."""

import math
from collections.abc import Callable

FORMULAS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "gelu_bloom": lambda x: x / 2 * (1 + math.tanh(0.79788456 * (x + 0.044715 * x**3))),
}
