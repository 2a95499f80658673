"""Runs a notebook once in a fresh kernel and makes what it printed storable."""

import contextlib
import importlib.metadata
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import ipykernel.kernelspec
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets import default

from tools.book.book import BookError

SECONDS = 300  # for one cell; an ordinary notebook takes 15 in all
PROFILE = """\
c = get_config()
c.InlineBackend.figure_formats = set()
c.IPKernelApp.log_level = 40
"""
FORBIDDEN = (
    (re.compile(r"\b0x[0-9a-f]{6,}"), "a memory address"),
    (
        re.compile(r"(/(home|root|tmp|Users)/|site-packages|ipykernel_)\S*"),
        "a path",
    ),
    (re.compile(r"jax\._src"), "a private name of JAX"),
)


class _Specs(KernelSpecManager):
    """Knows one kernel, that of `python`, and no folder of a user's."""

    python = sys.executable

    def get_kernel_spec(self, kernel_name):
        spec = ipykernel.kernelspec.get_kernel_dict()
        spec["argv"][0] = self.python
        return self.kernel_spec_class(resource_dir="", **spec)


def manager_class(python: str = sys.executable) -> type[AsyncKernelManager]:
    """What starts kernels of `python`, for nbclient to own and to close."""
    specs = type("_SpecsOfOnePython", (_Specs,), {"python": str(python)})

    class Manager(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _one_python(self):
            return specs(parent=self)

    return Manager


@contextlib.contextmanager
def kernel_environment():
    """The environment in which kernels make and check stored outputs.

    What a person has set for JAX, XLA, IPython or matplotlib stays out of it.
    """
    drop = ("XLA_", "JAX_", "MPL", "IPYTHON", "NBGRADER", "LIBTPU_", "TPU_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    with tempfile.TemporaryDirectory(prefix="book-kernel-") as folder:
        profile = Path(folder, "profile_default")
        (profile / "startup").mkdir(parents=True)
        (profile / "ipython_kernel_config.py").write_text(PROFILE, "utf8")
        startup = Path(__file__).with_name("kernel_startup.py")
        shutil.copy(startup, profile / "startup" / "00-figures.py")
        environment.update(
            IPYTHONDIR=folder,
            JAX_PLATFORMS="cpu",
            PYTHONHASHSEED="0",
            PYTHONWARNINGS="",
            COLUMNS="80",
            MPLCONFIGDIR=os.path.join(sys.prefix, "matplotlib"),  # the list of fonts
            TF_CPP_MIN_LOG_LEVEL="2",  # XLA's warnings have a time and a process number
        )
        yield environment


def execute(notebook, folder: Path, name: str) -> None:
    """Run every cell in `folder`; outputs are stored in `notebook` itself."""
    with kernel_environment() as environment:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            kernel_manager_class=manager_class(),
            timeout=SECONDS,
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            lacking = re.search(r"Exercise (\d+)\.(\d+): .* has no such", str(error))
            if lacking is None:
                raise BookError(f"{name} does not run to its end:\n{error}") from None
            chapter, number = lacking.groups()
            raise BookError(
                f"{name} has exercise {chapter}.{number}: write its check, "
                f"check_{chapter}_{number}, in src/spmd_exercises/ch{chapter:>02}.py"
            ) from None
    _normalize(notebook, name)


def versions_of(libraries: list[str] | tuple[str, ...] = ()) -> dict[str, str]:
    """The versions that a page shows under its title: JAX's and of these libraries."""
    return {name: importlib.metadata.version(name) for name in ("jax", *libraries)}


def _normalize(notebook, name: str) -> None:
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        at = f"{name}, cell {cell.id}"
        count += 1
        cell.metadata.pop("execution", None)
        if cell.execution_count is not None:
            cell.execution_count = count
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            _require_storable(output, at)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"].pop("version", None)
    nbformat.validate(notebook)


def _require_storable(output, at: str) -> None:
    """Refuse an output that would differ from run to run, or that says nothing."""
    if output.output_type == "error":
        raise BookError(f"{at}: stored a traceback: {output.ename}: {output.evalue}")
    if output.output_type == "stream":
        if output.name == "stderr":
            raise BookError(f"{at}: wrote to stderr: {output.text.strip()[:300]}")
        texts = {"stream": output.text}
    else:
        output.data.pop("application/vnd.jupyter.widget-view+json", None)
        texts = {k: v for k, v in output.data.items() if isinstance(v, str)}
        if "text/plain" not in texts:
            raise BookError(f"{at}: an output without a text twin ({sorted(texts)})")
        if any(kind.startswith("image/") for kind in texts):
            raise BookError(
                f"{at}: an image that no diff can show; draw it as SVG with words"
            )
        if re.match("Chart[,:]", texts["text/plain"]):
            raise BookError(
                f"{at}: a chart without a title, which a screen reader would say; "
                "give it one by plt.title"
            )
    for kind, text in texts.items():
        for pattern, what in FORBIDDEN:
            match = pattern.search(text)
            if match:
                raise BookError(f"{at}: {kind} shows {what}: {match.group()!r}")
