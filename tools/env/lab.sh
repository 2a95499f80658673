#!/usr/bin/env bash
# lab.sh BIN [OPTIONS OF JUPYTER LAB]
# Open JupyterLab on the reader's own copies of the notebooks, in my-notebooks/. git ignores
# them, so answers neither make `make check` red nor are lost by `make notebooks`.
set -euo pipefail
bin=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.."

mkdir -p my-notebooks
copied=() kept=0
for notebook in notebooks/*.ipynb; do
    if [[ -e my-notebooks/${notebook##*/} ]]; then
        kept=$((kept + 1))
    else
        cp "$notebook" my-notebooks/
        copied+=("my-notebooks/${notebook##*/}")
    fi
done
echo "== my-notebooks/: ${#copied[@]} notebooks copied, $kept kept as they were (delete one to get it anew)"

# What nbgrader adds is for a course's teacher; here its menus would only fail (the folder
# lab_config leaves them out) and its server warn of a missing configuration.
off=()
for name in formgrader validate_assignment assignment_list course_list; do
    off+=("'nbgrader.server_extensions.$name': False")
done
quiet=$(IFS=,; echo "{${off[*]}}")
export PATH=$bin:$PATH
export JUPYTER_CONFIG_PATH=$PWD/tools/env/lab_config${JUPYTER_CONFIG_PATH:+:$JUPYTER_CONFIG_PATH}
# JupyterLab shows no drawing of a notebook that it does not trust before its cells are run.
if ((${#copied[@]})); then
    jupyter trust "${copied[@]}" >/dev/null || echo "== run a notebook to see its drawings"
fi
exec jupyter lab my-notebooks --ServerApp.jpserver_extensions="$quiet" "$@"
