#!/usr/bin/env bash
# gpu.sh FOLDER VENV
# Make or refresh a virtual environment that also has the GPU compiler: all that VENV
# has, which it reads in its place, and JAX's CUDA plugin of the same version, none of
# NVIDIA's libraries. Programs compile for GPUs there, without having one. It takes half
# a minute and 500 MB. Does nothing while VENV has the same Python and JAX.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$1
venv=$2
stamp=$folder/.installed-gpu

ask='import sys; from importlib.metadata import version; print(version("jax"), sys.version)'
want="$PWD/$venv $("$venv/bin/python" -c "$ask")"
if [[ -f $stamp && $(cat "$stamp") == "$want" ]]; then exit 0; fi

version=$("$venv/bin/python" -c \
    'from importlib.metadata import version; print(version("jax"))')
rm -rf "$folder"
"$venv/bin/python" -m venv "$folder"
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
"$venv/bin/python" -c "$packages" >"$("$folder/bin/python" -c "$packages")/beside.pth"
log=$folder/install-gpu.log
echo "== $folder: installing the GPU compiler for jax $version"
if ! "$folder/bin/python" -m pip --disable-pip-version-check install --no-deps \
    "jax-cuda12-plugin==$version" "jax-cuda12-pjrt==$version" >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "The GPU compiler could not be installed into $folder (the CUDA plugin is" >&2
    echo "made for Linux only); all that pip said is in $log" >&2
    exit 1
fi
echo "$want" >"$stamp"
