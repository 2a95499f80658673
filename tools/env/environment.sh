#!/usr/bin/env bash
# environment.sh FOLDER [PYTHON]
# Make or refresh a virtual environment with the locked versions and the package
# (editable). Does nothing when neither the lock nor pyproject.toml has changed.
# With PYTHON the environment has that version. Without one a new environment takes the
# newest Python that the tests run on, and one that an older Python made is made again,
# unless PYTHON named that older one then. The old environment comes back if the new one
# cannot be installed.
# The stamp's first line says for which checkout the environment was made, since
# a moved or copied one still names its old place; the second what is installed, the
# third whether PYTHON named its Python.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/env/python.sh

folder=$1
python=${2:-}
named=${python:+"by hand"}
python=${python:-$(find_newest_python)}
stamp=$folder/.installed
here=$(pwd -P)
locked=$(cat requirements.txt pyproject.toml | cksum)

line() { sed -n "$1p" "$stamp" 2>/dev/null || true; }
minor() { python_version "$1" | cut -d. -f1,2; }
runs() { python_is_good "$folder/bin/python" 3.11; }
made_here() { [[ $(line 1) == "$here" ]]; }

# Why the environment has to be made again, in words; nothing if it need not.
outdated() {
    local has wants
    if [[ ! -e $folder ]]; then return; fi
    if ! runs; then
        echo "does not run Python 3.11 or newer"
    elif ! made_here; then
        echo "was not made here (moved, copied, or by another program)"
    elif [[ -n $named || $(line 3) != "by hand" ]]; then
        has=$(minor "$folder/bin/python")
        wants=$(minor "$python")
        if [[ -n $named && $has != "$wants" ]]; then
            echo "has Python $has, and PYTHON names $python"
        elif [[ $wants == 3.* ]] && ! python_is_good "$folder/bin/python" "$wants"; then
            echo "has Python $has, and $wants is here now"
        fi
    fi
}

why=$(outdated)
old=
bring_back() {
    if [[ -z $old || ! -e $old ]]; then return; fi
    rm -rf "$folder"
    mv "$old" "$folder"
    echo "What was in $folder before is there again." >&2
}
trap bring_back EXIT
if [[ -e $folder && -z $why ]]; then
    if [[ $(line 2) == "$locked" ]]; then exit 0; fi
    named=${named:-$(line 3)}
else
    require_python "$python"
    # The Python of an environment is gone with it: take the one that it came from.
    python=$("$python" -c 'import sys; print(sys._base_executable)')
    if [[ -n $why ]]; then
        echo "== $folder $why: making it again"
        old=$folder.old
        rm -rf "$old"
        mv "$folder" "$old"
    fi
    echo "== $folder: Python $(python_version "$python") ($python)"
    "$python" -m venv "$folder"
fi
printf '%s\n\n%s\n' "$here" "$named" >"$stamp"
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
    if [[ -n $old ]]; then cp "$log" "$old/install.log"; fi
    [[ $why == *"is here now" ]]  # then the old one still does
    exit
fi
if [[ -n $old ]]; then rm -rf "$old"; fi
# matplotlib lists the fonts once, and says so where that takes long: here, not in a cell.
MPLCONFIGDIR=$folder/matplotlib "$folder/bin/python" -c "import matplotlib.font_manager" \
    2>>"$log" || true
printf '%s\n' "$here" "$locked" "$named" >"$stamp"
