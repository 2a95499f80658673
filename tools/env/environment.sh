#!/usr/bin/env bash
# environment.sh FOLDER PYTHON
# Make or refresh a virtual environment with the locked versions and the package
# (editable). Does nothing when neither the lock nor pyproject.toml has changed.
# The stamp's first line says for which checkout the environment was made, since
# a moved or copied one still names its old place; the second what is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/env/python.sh

folder=$1
python=$2
stamp=$folder/.installed
here=$(pwd -P)
want=$here$'\n'$(cat requirements.txt pyproject.toml | cksum)

runs() { python_is_good "$folder/bin/python" 3.11; }
made_here() { [[ -f $stamp && $(head -n 1 "$stamp") == "$here" ]]; }

if made_here && [[ $(cat "$stamp") == "$want" ]] && runs; then exit 0; fi
if ! made_here || ! runs; then
    require_python "$python"
    if [[ -e $folder ]]; then
        why="does not run Python 3.11 or newer"
        if runs; then why="was not made here (moved, copied, or by another program)"; fi
        echo "== $folder $why: making it again"
    fi
    echo "== $folder: Python $(python_version "$python") ($(command -v "$python"))"
    rm -rf "$folder"
    "$python" -m venv "$folder"
fi
echo "$here" >"$stamp"
log=$folder/install.log
packages=$(sed -n 's/==.*//p' requirements.txt | sort -u | wc -l)
echo "== $folder: installing $((packages)) pinned packages (minutes the first time)"
pip=("$folder/bin/python" -m pip --disable-pip-version-check)
if ! {
    "${pip[@]}" install --requirement requirements.txt &&
        "${pip[@]}" install --quiet --no-deps --no-build-isolation --editable .
} 2>&1 | tee "$log" | bash tools/env/progress.sh; then
    tail -20 "$log" >&2
    echo "The installation into $folder failed; all that pip said is in $log" >&2
    warn_if_untried "$folder/bin/python" >&2
    exit 1
fi
echo "$want" >"$stamp"
