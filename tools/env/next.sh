#!/usr/bin/env bash
# next.sh FOLDER [PYTHON]
# Make or refresh a virtual environment with the newest JAX, Flax, Optax and Orbax that
# pip finds, pinned or not; all else as locked. Asks pip each time.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$1
bash tools/env/environment.sh "$folder" "${2:-}"
log=$folder/install-next.log
if ! "$folder/bin/python" -m pip --disable-pip-version-check install --upgrade \
    --upgrade-strategy eager jax jaxlib flax optax orbax-checkpoint >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "The newest JAX could not be installed into $folder; all that pip said is in $log" >&2
    exit 1
fi
