#!/bin/sh
# Two wheels of dist/ in clean environments without a compiler: one runs in the kernel, the other in NumPy, and
# both do what the README's commands say. Takes the Python to try them with.
set -eu
python=$1
from=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="-m pip --quiet --disable-pip-version-check --no-input"

mkdir "$work/with" "$work/without"
cp dist/qkv-*-manylinux_*_"$(uname -m)".whl "$work/with"
cp dist/qkv-*-py3-none-any.whl "$work/without"
"$python" - "$work/with/"qkv-*.whl "$work/without/"qkv-*.whl <<'END'
import os
import sys

MAX_BYTES = 25_000_000  # bytes: a wheel is installed to try something out
with_kernel, without = (os.path.getsize(path) for path in sys.argv[1:])
sizes = f"with the kernel {with_kernel / 1e6:.1f} MB, without {without / 1e6:.1f} MB"
if max(with_kernel, without) > MAX_BYTES:
    sys.exit(f"a wheel is larger than {MAX_BYTES / 1e6:.0f} MB: {sizes}; see which file grew: unzip -lv")
print(f"wheels: {sizes}, both at most {MAX_BYTES / 1e6:.0f} MB")
END

for kind in with without; do
  "$python" -m venv "$work/$kind-env"
  "$work/$kind-env/bin/python" $pip install "$work/$kind/"*.whl
  cd "$work"
  PATH=/nonexistent "$work/$kind-env/bin/python" - "$kind" <<'END'
import os
import sys
import threading
from importlib.metadata import files

import numpy as np

import qkv
from qkv.ops.kernel import compiled

native = sys.argv[1] == "with"
assert qkv.backend().startswith("native-") == native, qkv.backend()
x = np.arange(12, dtype=np.float32).reshape(3, 4)
scores = x.astype(float) @ x.T / 2
weights = np.exp(scores - scores.max(axis=1, keepdims=True))
expected = weights / weights.sum(axis=1, keepdims=True) @ x
assert np.allclose(qkv.attention(x, x, x), expected, atol=1e-5)
size = os.path.getsize(compiled.__file__) / 1e6 if native else 0
assert size < 6, size  # six variants
model = qkv.load()  # the one in the wheel
weights = model.trace("I sat on the bank of the river.").pattern(layer=0, head=0)
assert np.allclose(weights.sum(axis=1), 1, atol=1e-5)
text = qkv.load("books-decoder").generate("She opened the door and", max_new_tokens=20)
assert len(text.split()) >= 4, text
licences = [path for path in files("qkv") if path.name == "LICENSE.wordnet"]
assert len(licences) == 4, licences  # beside each model, and with the licences of the package
print(f"{sys.argv[1]} a kernel: {qkv.backend()}, {size:.1f} MB")


computed = threading.Event()


def compute():
    while True:
        qkv.attention(*[np.ones((4, 256, 32), np.float32)] * 3)
        computed.set()


for _ in range(2):
    threading.Thread(target=compute, daemon=True).start()
assert computed.wait(60)
# and Python ends while they compute
END
  "$work/$kind-env/bin/qkv" info | grep -q 'kernel was not built' && told=yes || told=no
  test "$told" = "$([ "$kind" = with ] && echo no || echo yes)"
  # the README's commands, but those that draw with matplotlib, wait for requests or need a cluster
  PATH="$work/$kind-env/bin:/usr/bin:/bin" CXX=/nonexistent
  export PATH CXX
  echo "The cat sat on the mat." > sentences.txt
  for command in \
    'walk "The cat sat on the mat"' 'show "I sat on the bank of the river." --html bank.html' \
    'compare "I sat on the bank of the river." "The bank charged a fee for the loan."' \
    'guess "The oak is a small [MASK]." --hide oak' 'play -o play.html' 'generate "once upon a"' \
    'encode sentences.txt -o vectors.npy' 'check --list' 'info'; do
    eval "qkv $command" >out 2>&1 || { cat out; echo "qkv $command: failed"; exit 1; }
  done
  test -s bank.html -a -s play.html -a -s vectors.npy
  rm bank.html play.html vectors.npy
  cd "$from"
done
