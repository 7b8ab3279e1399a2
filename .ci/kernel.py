"""Install qkv from this clone into an environment, editable, with its kernel.

    python .ci/kernel.py PYTHON

The kernel comes from a wheel in dist/ if the wheel's kernel was built from the sources in this
clone and PYTHON can load the kernel. Otherwise the kernel is compiled: the fastest variant that
this machine runs, or, if CI is set, all that it runs.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL = ROOT / "src/qkv/_kernel.abi3.so"
INSTALL = [sys.executable, str(ROOT / ".ci/install.py")]
WITHOUT_COMPILER = ["-C", "wheel.cmake=false", "-C", "wheel.py-api="]


def sources() -> str:
    """Return the hash that native/CMakeLists.txt writes into a kernel as `_kernel.SOURCES`."""
    native = ROOT / "native"
    files = sorted([*native.glob("*.cpp"), *native.glob("*.h"), native / "CMakeLists.txt"])
    digests = "".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    return hashlib.sha256(digests.encode()).hexdigest()


def built(python: str) -> bytes | None:
    """Find the kernel of the first fitting wheel in dist/."""
    digest = sources().encode()
    for wheel in sorted(ROOT.glob("dist/qkv-*-abi3-*.whl")):
        with zipfile.ZipFile(wheel) as files:
            found = files.read("qkv/_kernel.abi3.so")
        if digest in found and loads(python, found):
            print(
                f"  the kernel of {wheel.relative_to(ROOT)} fits: nothing is compiled", flush=True
            )
            return found
    return None


def loads(python: str, kernel: bytes) -> bool:
    """Tell whether a kernel loads on this system and has code for this processor."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, KERNEL.name).write_bytes(kernel)
        code = "import _kernel, sys; sys.exit(not _kernel.variants())"
        done = subprocess.run(
            [python, "-c", code], env={**os.environ, "PYTHONPATH": folder}, capture_output=True
        )
        return done.returncode == 0


def main(python: str) -> int:
    """Install qkv, and return the exit status."""
    kernel = built(python)
    if kernel is not None:
        options = WITHOUT_COMPILER
        fresh = KERNEL.with_suffix(".new")
        fresh.write_bytes(kernel)
        fresh.replace(KERNEL)
    else:
        variants = "runnable" if os.environ.get("CI") else "own"
        options = ["-C", f"cmake.define.QKV_VARIANTS={variants}"]
        print(
            "  if there is a compiler, the kernel is compiled for this processor: up to a minute",
            flush=True,
        )
    # do not compile bytecode now, which would take 10 seconds: Python compiles each module at its
    # first import
    return subprocess.call(
        [*INSTALL, python, *options, "--no-compile", "--editable", f"{ROOT}[plot,png]"]
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
