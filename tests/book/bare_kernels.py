"""Runs notebooks in kernels of another Python, in a folder with nothing in it."""

import os
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tools.book.run import manager_class

# How this machine reaches a network.
NETWORK = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
NETWORK += ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


def run(notebook, python: Path, folder: Path, allow_errors=False, **variables):
    """Run the notebook in `folder`, with no more than `variables` set for it."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    environment |= {name: os.environ[name] for name in NETWORK if name in os.environ}
    environment["JAX_PLATFORMS"] = variables.get("JAX_PLATFORMS", "cpu")
    environment["PIP_COMPILE"] = "0"  # Python does what is imported, and sooner
    environment["IPYTHONDIR"] = str(folder / ".ipython")
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=manager_class(python),
        timeout=300,
        allow_errors=allow_errors,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    return notebook


def cells(*sources: str):
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources]
    )


def printed(notebook, number: int) -> str:
    """What the cell of that number wrote to stdout."""
    outputs = notebook.cells[number].outputs
    return "".join(o.text for o in outputs if o.get("name") == "stdout")


def errors(notebook) -> list:
    return [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]


def require_one_sentence(error) -> None:
    assert "\n" not in error.evalue
    assert len(error.evalue) < 400
    assert not re.search(r"(?<!\.)\. ", error.evalue)  # three dots end no sentence
