#!/usr/bin/env bash
# tpu.sh FOLDER PYTHON
# Make or refresh a virtual environment that also has the TPU compiler, libtpu: all
# that environment.sh installs, and jax[tpu] of the same version as the pinned jax.
# Programs compile for a TPU there, without having one. libtpu takes 700 MB.
# Does nothing when neither the lock nor pyproject.toml has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$1
python=$2
stamp=$folder/.installed-tpu

# It makes the folder again, and so without our stamp, wherever it has to.
bash tools/env/environment.sh "$folder" "$python"
want=$(cat "$folder/.installed")
if [[ -f $stamp && $(cat "$stamp") == "$want" ]]; then exit 0; fi

version=$("$folder/bin/python" -c \
    'from importlib.metadata import version; print(version("jax"))')
log=$folder/install-tpu.log
echo "== $folder: installing the TPU compiler for jax $version (minutes the first time)"
if ! "$folder/bin/python" -m pip --disable-pip-version-check install \
    --constraint requirements.txt "jax[tpu]==$version" >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "The TPU compiler could not be installed into $folder (libtpu is made for" >&2
    echo "Linux on x86-64 only); all that pip said is in $log" >&2
    exit 1
fi
echo "$want" >"$stamp"
