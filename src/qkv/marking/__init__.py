"""Mark somebody's own attention function: which of the known mistakes did it make?"""

from qkv.marking.marker import check
from qkv.marking.result import CheckResult

__all__ = ["CheckResult", "check"]
