#!/bin/sh
# Makes .bench-venv: ferrule, and the libraries that it is measured against.
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
[ -x .bench-venv/bin/python ] || "$python" -m venv .bench-venv
pip=".bench-venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip -e .
# The CPU build has an index of its own; where that cannot be reached, the usual one.
$pip "torch==2.13.0" --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu ||
    $pip "torch==2.13.0"
$pip jax || echo "jax cannot be installed here: its rows will say so"
