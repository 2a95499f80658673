#!/usr/bin/env bash
# lock.sh BIN: pin every package again, for Python 3.11 and newer in one file.
# uv resolves for all Pythons at once; it lives in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [[ ! -x _build/lock/bin/uv ]]; then
    "$1/python" -m venv _build/lock
    _build/lock/bin/python -m pip install --quiet uv
fi
_build/lock/bin/uv pip compile pyproject.toml --extra test --universal \
    --python-version 3.11 --no-header --no-annotate --upgrade --quiet \
    --output-file requirements.txt
echo "requirements.txt has $(grep -c == requirements.txt) pinned packages"
