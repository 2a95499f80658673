#!/usr/bin/env bash
# compilers.sh VENV
# Put the compilers of TPUs and GPUs that are not here into VENV/compilers/tpu and gpu,
# which only those see who name them on their PYTHONPATH: all else runs as without them.
# Each has the version that VENV's jax asks for: libtpu, and the two packages of JAX's
# CUDA plugin without NVIDIA's libraries, which no compiler needs. About 1.1 GB; for Linux
# on x86-64. Does nothing when that jax has them already.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$1/bin/python
folder=$1/compilers
wanted=$("$python" - <<'PYTHON'
from importlib.metadata import requires

from packaging.requirements import Requirement

asked = {one.name: one.specifier for one in map(Requirement, requires("jax"))}
plugin = asked["jax-cuda12-plugin"]
print(f"tpu libtpu{asked['libtpu']}")
print(f"gpu jax-cuda12-plugin{plugin} jax-cuda12-pjrt{plugin}")
PYTHON
)
if [[ $(cat "$folder/installed" 2>/dev/null) == "$wanted" ]]; then exit 0; fi
rm -rf "$folder"
mkdir "$folder"
log=$1/compilers.log
while read -ra packages; do
    name=${packages[0]}
    echo "== $folder/$name: installing ${packages[*]:1}"
    if ! "$python" -m pip --disable-pip-version-check install --no-deps \
        --target "$folder/$name" "${packages[@]:1}" >"$log" 2>&1 </dev/null; then
        tail -20 "$log" >&2
        echo "The compilers could not be installed into $folder (they are made for Linux" >&2
        echo "on x86-64 only); all that pip said is in $log" >&2
        exit 1
    fi
done <<<"$wanted"
echo "$wanted" >"$folder/installed"
