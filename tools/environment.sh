#!/usr/bin/env bash
# environment.sh FOLDER PYTHON
# Make or refresh a virtual environment with the locked versions and the package
# (editable). Does nothing when neither the lock nor pyproject.toml has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/python.sh

folder=$1
python=$2
stamp=$folder/.installed
want=$(cat requirements.txt pyproject.toml | cksum)

runs() { "$folder/bin/python" -c "" 2>/dev/null; }

if [[ -f $stamp && $(cat "$stamp") == "$want" ]] && runs; then exit 0; fi
if ! runs; then
    require_python "$python"
    echo "== $folder: Python $(python_version "$python") ($(command -v "$python"))"
    rm -rf "$folder"
    "$python" -m venv "$folder"
fi
rm -f "$stamp"
log=$folder/install.log
packages=$(grep -c == requirements.txt)
echo "== $folder: installing $packages pinned packages (minutes the first time)"
pip=("$folder/bin/python" -m pip --disable-pip-version-check)
if ! {
    "${pip[@]}" install --requirement requirements.txt &&
        "${pip[@]}" install --quiet --no-deps --no-build-isolation --editable .
} 2>&1 | tee "$log" | bash tools/progress.sh; then
    tail -20 "$log" >&2
    echo "The installation into $folder failed; all that pip said is in $log" >&2
    exit 1
fi
echo "$want" >"$stamp"
