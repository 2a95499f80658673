"""Store small programs as the GPU compiler prints them, for the parser's tests.

    python -m tools.measure.absent.texts [FOLDER]

writes PROGRAM_VERSION.hlo.xz for each small program, compiled for 16 H100s in two hosts
with the JAX that is here, and the bytes of their temporaries into texts_VERSION.json.
"""

import json
import lzma
import re
import sys
from pathlib import Path

import spmd_helpers as spmd
from tools import ROOT
from tools.measure import runner
from tools.measure.absent import programs

STORED = ROOT / "tests" / "data" / "gpu"
# The folders of this machine that the text names as sources.
PLACES = re.compile(r'"/[^"\n]*/(tools|src|site-packages)/')
NAMES = ("mlp", "mixture_of_experts", "recurrent", "embedding")


def main():
    import jax

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else STORED
    folder.mkdir(parents=True, exist_ok=True)
    mesh = spmd.gpu_mesh("h100:2x8", data=16)
    temp_bytes = {}
    for name in NAMES:
        step, args = programs.built(name, mesh, small=True)
        compiled = step.lower(*args).compile()
        path = folder / f"{name}_{jax.__version__}.hlo.xz"
        text = PLACES.sub(r'"/home/reader/\1/', compiled.as_text())
        path.write_bytes(lzma.compress(text.encode()))
        temp_bytes[name] = compiled.memory_analysis().temp_size_in_bytes
        print(f"{path.name}: {path.stat().st_size} bytes")
    about = {"jax": jax.__version__, "date": runner.today(), "temp_bytes": temp_bytes}
    out = folder / f"texts_{jax.__version__}.json"
    out.write_text(json.dumps(about, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main()
