"""Tests of `qkv.integrations.transformers` without torch; tests/parity tests it with torch."""

import subprocess
import sys


def test_without_torch_the_error_says_what_to_install() -> None:
    program = """if True:
        import sys
        sys.modules["torch"] = None
        import qkv
        try:
            qkv.integrations.transformers.register()
        except ImportError as error:
            print(error)
    """
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith(
        "this needs torch, which is not installed: pip install '.[torch]'"
    )
