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

# Say so if $1 is newer than the Pythons that the tests run on.
say_if_untried() {
    if python_is_good "$1" 3.14; then
        echo "== Python $(python_version "$1"): what is pinned installs, the tests run on 3.11 to 3.13"
    fi
}

# Stop with a sentence unless $1 is a Python for this book.
require_python() {
    if python_is_good "$1" 3.11; then
        say_if_untried "$1" >&2
        return
    fi
    if ! command -v "$1" >/dev/null; then
        echo "This book needs Python 3.11 or newer, and $1 was not found." >&2
        echo "Point at another one:  PYTHON=/path/to/python3.13 make ${GOAL:-book}" >&2
        exit 1
    fi
    local have
    have=$(python_version "$1")
    if "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "Python $have ($1) has no venv or ensurepip module, which makes the" >&2
        echo "book's own environment. On Debian or Ubuntu: apt install python3-venv" >&2
    else
        echo "This book needs Python 3.11 or newer; $1 is: $have." >&2
        echo "Point at another one:  PYTHON=/path/to/python3.13 make ${GOAL:-book}" >&2
    fi
    exit 1
}

# Print a Python of the first version given that runs here, else of the second, and so
# on; nothing if there is none. python3 counts for the version that it has.
find_python() {
    local version candidate all="${PYENV_ROOT:-${HOME:-}/.pyenv}/versions"
    for version; do
        for candidate in "python$version" python3 "$all/$version".*/bin/python; do
            if python_is_good "$candidate" "$version" &&
                ! python_is_good "$candidate" "3.$((${version#3.} + 1))"; then
                command -v "$candidate"
                return
            fi
        done
    done
}

# Print the Python that makes .venv where PYTHON names none: the newest that the tests
# run on, else python3.
find_newest_python() {
    local python
    python=$(find_python 3.13 3.12 3.11)
    echo "${python:-python3}"
}
