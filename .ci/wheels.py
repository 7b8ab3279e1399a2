"""Build the wheels of a release into dist/, and the sdist that they are built from.

    python .ci/wheels.py [NAME...]

A name is one of TARGETS, or "any" for the wheel without a kernel; without names all are built.
Files of other versions in dist/ are removed. One compiler builds the wheels of every processor and
C library: the clang of `ziglang`, with its own C and C++ libraries. The bytes depend only on the
sources, on the versions of pyproject.toml's `wheels`, and on the time of the last commit.
`make wheels` runs this script in its own environment.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
GLIBC, MUSL = "2.28", "1.2"  # the oldest glibc and the oldest musl that the wheels support
# name: (what zig calls the target, the processor, the platform tag)
TARGETS = {
    f"{arch}-{libc}": (f"{arch}-linux-{zig}", arch, f"{tag}_{arch}")
    for libc, zig, tag in (
        ("glibc", f"gnu.{GLIBC}", f"manylinux_{GLIBC.replace('.', '_')}"),
        ("musl", "musl", f"musllinux_{MUSL.replace('.', '_')}"),
    )
    for arch in ("x86_64", "aarch64")
}


# the unwinder functions that C++ and glibc may call
UNWINDER = [
    *("Backtrace", "DeleteException", "FindEnclosingFunction", "Find_FDE", "ForcedUnwind"),
    *("GetCFA", "GetDataRelBase", "GetGR", "GetIP", "GetIPInfo", "GetLanguageSpecificData"),
    *("GetRegionStart", "GetTextRelBase", "RaiseException", "Resume", "Resume_or_Rethrow"),
    *("SetGR", "SetIP"),
]


def run(*command: str | Path, **env: str) -> None:
    """Run a tool of this environment; show its output only if it fails."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PATH": tools, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))}: exit status {done.returncode}")


def copied(folder: Path) -> Path:
    """Copy the current files of ROOT into a folder, and return the folder.

    Files that git ignores are not copied. If ROOT is not a git clone, this function copies nothing
    and returns ROOT.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return ROOT
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(source: Path, kind: str, work: Path, **env: str) -> Path:
    """Build a folder with `python -m build`, and return the result."""
    out = work / "out"
    run(
        sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source, **env
    )
    (found,) = out.iterdir()
    return found


def compiled(source: Path, name: str, work: Path, **env: str) -> Path:
    """Build the wheel of a target."""
    target, arch, tag = TARGETS[name]
    compiler = work / "c++"
    script = f'#!/bin/sh\n"{sys.executable}" -m ziglang c++ -target {target} "$@" || exit\n'
    # zig links the kernel with a library named libc.so. Systems with musl name this library
    # libc.musl-ARCH.so.1, so the script puts this name into the kernel.
    if "musl" in target:
        script += f"""while [ $# -gt 1 ]; do case "$1 $2" in "-o "*.so)
patchelf --replace-needed libc.so libc.musl-{arch}.so.1 "$2" ;; esac; shift; done\n"""
    compiler.write_text(script)
    compiler.chmod(0o755)
    options = [f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={arch}"]
    if "gnu" in target:
        options.append(f"-DCMAKE_MODULE_LINKER_FLAGS={unwinder(target, work)}")
    wheel = build(
        source,
        "wheel",
        work,
        CXX=str(compiler),
        CMAKE_ARGS=" ".join(options),
        QKV_NEED_KERNEL="1",
        _PYTHON_HOST_PLATFORM=f"linux-{arch}",
        **env,
    )
    run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel, **env)
    (wheel,) = wheel.parent.iterdir()
    inspect(wheel, tag)
    return wheel


def unwinder(target: str, work: Path) -> Path:
    """Build a stand-in for libgcc_s to link with, so that the kernel uses the system's libgcc_s.

    glibc ends a thread by unwinding it with libgcc_s. zig would link another unwinder into the
    kernel. The kernel would then crash if Python ended while a Python thread was running the
    kernel.
    """
    source, library = work / "unwinder.c", work / "libgcc_s.so.1"
    source.write_text("".join(f"void _Unwind_{name}(void) {{}}\n" for name in UNWINDER))
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target]
    run(
        *compiler,
        "-shared",
        "-nostdlib",
        "-fPIC",
        f"-Wl,-soname,{library.name}",
        "-o",
        library,
        source,
    )
    return library


def inspect(wheel: Path, tag: str) -> None:
    """Stop unless auditwheel finds that a platform of this tag has all that the kernel needs."""
    # ignore this machine's library folders: other machines lack them
    auditwheel = [sys.executable, "-m", "auditwheel", "show", "--ldpaths", "", str(wheel)]
    told = subprocess.run(auditwheel, capture_output=True, text=True)
    named = r"([a-z]+)_(\d+)_(\d+)_(\w+)"
    wanted = re.fullmatch(named, tag)
    found = re.search(f'platform tag:\\s+"{named}"', told.stdout)
    # an older C library is fine as well
    if not found or found.group(1, 4) != wanted.group(1, 4) or older(wanted, found):
        sys.exit(f"auditwheel does not find {wheel.name} to be {tag}:\n{told.stdout}{told.stderr}")


def older(one: re.Match[str], other: re.Match[str]) -> bool:
    """Tell whether tag `one` needs an older C library than tag `other`."""
    return [*map(int, one.group(2, 3))] < [*map(int, other.group(2, 3))]


def main(*names: str) -> None:
    """Build them."""
    known = (*TARGETS, "any")
    names = tuple(dict.fromkeys(names or known))
    if unknown := {*names} - {*known}:
        sys.exit(f"wheels: there is no {', '.join(sorted(unknown))}: choose {', '.join(known)}")
    epoch = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True
    )
    env = {
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH")
        or epoch.stdout.strip()
        or "1700000000"
    }
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        made = [build(copied(work / "clone"), "sdist", work / "sdist", **env)]
        with tarfile.open(made[0]) as archive:
            archive.extractall(work, filter="data")
        source = work / made[0].name.removesuffix(".tar.gz")
        for name in names:
            (work / name).mkdir()
            if name == "any":
                made.append(
                    build(
                        source, "wheel", work / name, QKV_NEED_KERNEL="", CXX="/nonexistent", **env
                    )
                )
            else:
                made.append(compiled(source, name, work / name, **env))
            print(f"built {made[-1].name}", flush=True)
        version = source.name  # with the name of the package
        for old in DIST.glob("qkv-*"):
            if not old.name.startswith((f"{version}-", f"{version}.tar")):
                old.unlink()
        for file in made:
            shutil.move(file, DIST / file.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
