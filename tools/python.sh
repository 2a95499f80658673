# Find a Python. Source this file; it needs only bash.

# Is $1 a Python that runs, is at least $2, and can make a virtual environment?
# (A version shim can be on PATH and not run; Debian splits venv off.)
python_is_good() {
    "$1" -c "import sys, venv, ensurepip
sys.exit(sys.version_info < (${2/./, }))" 2>/dev/null
}

# The version that $1 has, in words.
python_version() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null ||
        echo "none that runs"
}

# Stop with a sentence unless $1 is a Python for this book.
require_python() {
    if python_is_good "$1" 3.11; then return; fi
    local have
    have=$(python_version "$1")
    if "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "Python $have ($1) has no venv or ensurepip module, which makes the" >&2
        echo "book's own environment. On Debian or Ubuntu: apt install python3-venv" >&2
    else
        echo "This book needs Python 3.11 or newer; $1 is: $have." >&2
        echo "Point at another one:  PYTHON=python3.12 make ${GOAL:-book}" >&2
    fi
    exit 1
}

# Print a Python of 3.12 or newer that runs here; nothing if there is none.
find_newer_python() {
    local candidate
    for candidate in python3.13 python3.12 python3.14 python3 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[3-9]*/bin/python \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python; do
        if python_is_good "$candidate" 3.12; then
            command -v "$candidate"
            return
        fi
    done
}
