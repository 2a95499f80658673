#!/usr/bin/env bash
# environment.sh FOLDER [PYTHON]
# Make or refresh a virtual environment with the locked versions and the package
# (editable). Does nothing when neither the lock nor pyproject.toml has changed.
# Without PYTHON the newest is taken that the tests run on, and an environment that an
# older one made, where none was asked for, is made again.
# The stamp's first line says for which checkout the environment was made, since
# a moved or copied one still names its old place; the second what is installed, the
# third whether its Python was asked for.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/env/python.sh

folder=$1
python=${2:-}
chosen=${python:+"by hand"}
python=${python:-$(find_newest_python)}
stamp=$folder/.installed
here=$(pwd -P)
locked=$(cat requirements.txt pyproject.toml | cksum)

line() { sed -n "$1p" "$stamp" 2>/dev/null || true; }
runs() { python_is_good "$folder/bin/python" 3.11; }
made_here() { [[ $(line 1) == "$here" ]]; }
outdated() {
    local newest
    newest=$(python_version "$python")
    [[ -z $chosen && $(line 3) != "by hand" && $newest == 3.* ]] &&
        ! python_is_good "$folder/bin/python" "${newest%.*}"
}

if made_here && runs && ! outdated; then
    if [[ $(line 2) == "$locked" ]]; then exit 0; fi
    chosen=$(line 3)
else
    require_python "$python"
    if [[ -e $folder ]]; then
        why="does not run Python 3.11 or newer"
        if runs; then why="was not made here (moved, copied, or by another program)"; fi
        if made_here && runs; then why="has an older Python than there is now"; fi
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
    if python_is_good "$folder/bin/python" 3.14; then
        echo "The tests run on 3.11 to 3.13:  PYTHON=python3.13 make ${GOAL:-book}" >&2
    fi
    exit 1
fi
printf '%s\n' "$here" "$locked" "$chosen" >"$stamp"
