"""Mark somebody's own functions: which of the known mistakes did they make?"""

from qkv.marking.marker import check
from qkv.marking.result import CheckResult

__all__ = ["CheckResult", "check"]
