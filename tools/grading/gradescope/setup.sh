#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image. The system's python3
# stays what it is, because Gradescope's own harness runs on it: the grader gets a
# Python of its own in source/.venv. GRADER_PYTHON names another version or a file.
set -euo pipefail
source="${AUTOGRADER_ROOT:-/autograder}/source"

# uv takes a Python of that version that is there, or fetches one.
if ! python3 -m pip --version >/dev/null 2>&1; then
    apt-get update && apt-get install -y python3-pip
fi
python3 -m pip install --quiet --target "$source/uv" uv
export UV_PYTHON_INSTALL_DIR="$source/python"
"$source/uv/bin/uv" venv --clear --python "${GRADER_PYTHON:-3.12}" "$source/.venv"

# Both wheels from this folder, never a package of their name from elsewhere.
packages=()
for wheel in "$source"/wheels/spmd_*.whl; do
    case "$wheel" in
        */spmd_helpers-*) packages+=("spmd-helpers[notebooks] @ file://$wheel") ;;
        */spmd_grading-*) packages+=("spmd-grading @ file://$wheel") ;;
    esac
done
"$source/uv/bin/uv" pip install --python "$source/.venv/bin/python" \
    --constraint "$source/constraints.txt" "${packages[@]}"

# An image that can't grade fails here, not at the first learner's submission.
first=("$source"/release/*.ipynb)
cd "$source"
.venv/bin/python -P -m spmd_grading "${first[0]}" --release release
