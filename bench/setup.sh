#!/bin/sh
# Makes .bench-venv: ferrule, and the libraries that it is measured against, each of them optional.
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
[ -x .bench-venv/bin/python ] || "$python" -m venv .bench-venv
pip=".bench-venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip -e .

# The CPU build has an index of its own; where that cannot be reached, the usual one.
$pip "torch==2.13.0" --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu ||
    $pip "torch==2.13.0" || echo "torch cannot be installed here: its rows will say so"
for peer in jax "tinygrad==0.14.0" "mlx[cpu]" "onnxruntime onnx"; do
    # shellcheck disable=SC2086  # the last one is two packages
    $pip $peer || echo "$peer cannot be installed here: its rows will say so"
done
command -v clang > /dev/null || echo "there is no clang, which tinygrad compiles with"
command -v g++ > /dev/null || echo "there is no g++, which torch.compile and mlx.compile need"
