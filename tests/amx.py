"""Whether the kernel was compiled with the model of AMX's tiles."""

import os
import subprocess
import sys

import pytest

PROGRAM = "import qkv, sys; sys.exit(qkv.backend() != 'native-amx')"


def _has_model() -> bool:
    environment = {name: text for name, text in os.environ.items() if name != "QKV_BACKEND"}
    environment["QKV_AMX"] = "model"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, check=False, capture_output=True
    )
    return done.returncode == 0


needs_model = pytest.mark.skipif(
    not _has_model(), reason="the kernel was compiled for one processor only: CI=1 compiles all"
)
