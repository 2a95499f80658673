#!/usr/bin/env bash
# compilers.sh VENV
# Put the compilers of TPUs that are not here into VENV/compilers, a folder that only
# what names it on its PYTHONPATH sees: all else runs as where there is none. Each has
# the version that VENV's jax asks for. About 700 MB; Linux on x86-64 only.
# Does nothing when that jax has them already.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$1/bin/python
folder=$1/compilers
wanted=$("$python" - <<'PYTHON'
from importlib.metadata import requires
from packaging.requirements import Requirement

for text in requires("jax"):
    one = Requirement(text)
    if one.name == "libtpu":
        print(f"{one.name}{one.specifier}")
PYTHON
)
if [[ $(cat "$folder/installed" 2>/dev/null) == "$wanted" ]]; then exit 0; fi
rm -rf "$folder"
mkdir "$folder"
log=$1/compilers.log
echo "== $folder: installing" $wanted
# shellcheck disable=SC2086  # one word each
if ! "$python" -m pip --disable-pip-version-check install --no-deps \
    --target "$folder" $wanted >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "The compilers could not be installed into $folder (they are made for Linux" >&2
    echo "on x86-64 only); all that pip said is in $log" >&2
    exit 1
fi
echo "$wanted" >"$folder/installed"
