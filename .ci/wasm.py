"""Compile the operations of the live page's engine to WebAssembly: `make wasm`.

    python .ci/wasm.py [check]

The clang of `ziglang`, which also builds the wheels, compiles native/page.cpp. The bytes depend
only on the sources and on the version of `ziglang` in pyproject.toml. With `check`, the script
compares them with the committed file and writes nothing.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "native/page.cpp"
MODULE = ROOT / "src/qkv/see/page/assets/engine/kernels.wasm"
STACK = 16384  # bytes; the stack is a part of the memory, before the parameters
FLAGS = (
    *("-target", "wasm32-freestanding", "-mcpu=generic+simd128+bulk_memory+nontrapping_fptoint"),
    *("-std=c++17", "-O3", "-nostdlib", "-fno-exceptions", "-fno-rtti", "-fno-sanitize=all"),
    *("-Wall", "-Wextra", "-Werror"),
    *(
        "-Wl,--no-entry",
        "-Wl,--strip-all",
        "-Wl,--export=__heap_base",
        f"-Wl,-z,stack-size={STACK}",
    ),
)


def compiled(folder: Path) -> bytes:
    """Compile the module in a folder and return its bytes."""
    out = folder / MODULE.name
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "c++", *FLAGS, str(SOURCE), "-o", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout)
    return out.read_bytes()


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        code = compiled(Path(made))
    if sys.argv[1:] != ["check"]:
        MODULE.write_bytes(code)
    elif MODULE.read_bytes() != code:
        sys.exit(
            f"{MODULE.relative_to(ROOT)} does not match {SOURCE.relative_to(ROOT)}: "
            "run `make wasm bundles` and commit what it writes"
        )
