#!/bin/sh
# The wheel for arm64 under qemu-aarch64, with Debian's arm64 Python, which is downloaded into a folder of its own:
# nothing is installed. Takes a Python with pip, and the wheel.
set -eu
python=$1
wheel=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
: > "$work/status"
cat > "$work/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Debug::NoLocking "true";
Dir::State "$work";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
END
APT_CONFIG="$work/apt.conf"
export APT_CONFIG
apt-get update -qq || true # of several sources, one may be out of reach
apt-get install --download-only --no-install-recommends --yes -qq python3 libstdc++6 >/dev/null
for deb in "$work"/cache/archives/*.deb; do dpkg -x "$deb" "$work/root"; done
interpreter=$(find "$work/root" -path '*/bin/python3')
arm() { qemu-aarch64 -L "$work/root" "$interpreter" "$@"; }
PYTHONHOME=$(dirname "$(dirname "$interpreter")")
version=$(PYTHONHOME=$PYTHONHOME arm -c 'import sys; print("%d.%d" % sys.version_info[:2])')

"$python" -m pip install --quiet --disable-pip-version-check --no-input --target "$work/site" \
  --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
  --python-version "$version" --only-binary=:all: "$wheel"
export PYTHONHOME PYTHONPATH="$work/site"
arm - <<'END'
import platform

import numpy as np

import qkv

assert platform.machine() == "aarch64"
assert qkv.backend() == "native-portable", qkv.backend()
x = np.arange(12, dtype=np.float32).reshape(3, 4)
scores = x.astype(float) @ x.T / 2
weights = np.exp(scores - scores.max(axis=1, keepdims=True))
expected = weights / weights.sum(axis=1, keepdims=True) @ x
assert np.allclose(qkv.attention(x, x, x), expected, atol=1e-5)
[[(first, _), *_]] = qkv.load().predict("The oak is a small [MASK].")
print(f"on {platform.machine()}: {qkv.backend()}, and in place of [MASK] {first}")
END
