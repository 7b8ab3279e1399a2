#!/usr/bin/env bash
# Gradescope runs this script once, when it builds the image of the autograder.
set -euo pipefail
home="${QKV_AUTOGRADER:-/autograder}"

pick() { # print the first Python that can make an environment for qkv
    for python in python3.13 python3.12 python3.11 python3; do
        if "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    return 1
}
if ! python=$(pick); then
    apt-get update --quiet
    apt-get install --quiet --yes python3.12-venv || apt-get install --quiet --yes python3.11-venv
    python=$(pick)
fi
"$python" -m venv "$home/venv"
pip=("$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" --no-index --no-deps --find-links "$home/source/wheels" qkv
"${pip[@]}" 'qkv[plot]' ipython
"$home/venv/bin/qkv" check --list >/dev/null
