"""`make lab` as a reader meets it: JupyterLab in a browser, Run All Cells.

Needs a Chromium on this machine (CHROMIUM names one elsewhere); without one these
tests are skipped, unless SPMD_BROWSER_REQUIRED=1.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

from tools.check.browser import browser_path, no_browser

pytestmark = pytest.mark.long("JupyterLab in a browser")

ROOT = Path(__file__).resolve().parents[2]


NAME = "03_mesh_and_partitionspec.ipynb"
PROGRESS = """\
import ipywidgets
ipywidgets.IntProgress(3, max=4, description="steps")
"""
EXPLORER = "spmd.ShardingExplorer(x)"
PLAYER = "spmd.xray(lambda x: x.sum(axis=1), x).play()"  # x is 8 by 6 on 4 by 2
SECONDS = 120  # for each wait; a quiet machine needs a few


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """What `make lab` uses of the repository, and one notebook, with a widget."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "notebooks").mkdir()
    shutil.copytree(ROOT / "tools", root / "tools")
    notebook = nbformat.read(ROOT / "notebooks" / NAME, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(EXPLORER, id="explorer"))
    notebook.cells.append(nbformat.v4.new_code_cell(PLAYER, id="player"))
    notebook.cells.append(nbformat.v4.new_code_cell(PROGRESS, id="progress"))
    for cell in notebook.cells:  # a count that is there in the end comes from the run
        if cell.cell_type == "code":
            cell.execution_count = None
    nbformat.write(notebook, root / "notebooks" / NAME)
    return root


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def lab(checkout):
    """Where JupyterLab answers; as from `make lab LAB="--no-browser ..."`."""
    if browser_path() is None:
        said = no_browser("JupyterLab was not opened")
        if os.environ.get("SPMD_BROWSER_REQUIRED") == "1":
            pytest.fail(said)
        pytest.skip(said)
    port = free_port()
    log = (checkout / "log").open("w")
    drop = ("JUPYTER", "IPYTHON", "JAX_", "XLA_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    server = subprocess.Popen(
        [
            *("bash", "tools/env/lab.sh", str(Path(sys.executable).parent)),
            *("--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}"),
            *("--ServerApp.port_retries=0", "--IdentityProvider.token=x"),
        ],
        cwd=checkout,
        env=environment | {"HOME": str(checkout), "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api").close()
                break
            said = (checkout / "log").read_text()
            assert server.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/lab/tree/{NAME}?token=x&reset"
    finally:
        server.send_signal(signal.SIGTERM)  # it ends its kernels, then itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


@pytest.fixture(scope="module")
def page(lab, browser):
    """The notebook in a browser, after Run > Run All Cells.

    It opens with the stored drawings: they show before anything is run.
    """
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(SECONDS * 1000)
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(lab)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.wait_for_selector(".jp-OutputArea svg.spmd-drawing", state="attached")
    # Without a kernel Run All would first ask for one.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
    # The last cell has run; what is far off the screen is not drawn yet.
    page.wait_for_selector(".widget-hprogress", state="attached")
    yield page
    page.close()


def test_every_cell_ran_without_an_error(page, checkout):
    assert page.locator(".jp-Dialog").all_inner_texts() == []
    page.keyboard.press("Control+s")
    saved = checkout / "my-notebooks" / NAME
    until = time.monotonic() + SECONDS
    while not (code := _code(saved))[-1].outputs:
        assert time.monotonic() < until, "not saved"
        page.wait_for_timeout(200)
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert [o.evalue for o in outputs if o.output_type == "error"] == []
    assert [o.text for o in outputs if o.get("name") == "stderr"] == []
    assert page.complaints == []


def _code(path: Path) -> list:
    while not path.read_bytes().rstrip().endswith(b"}"):  # it is being written
        time.sleep(0.05)
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_drawings_and_the_progress_bar_show(page):
    drawings = page.locator(".jp-OutputArea svg.spmd-drawing")
    drawings.first.scroll_into_view_if_needed()
    box = drawings.first.bounding_box()
    assert box["width"] > 200
    assert box["height"] > 100
    bar = page.locator(".jp-OutputArea .widget-hprogress")
    bar.scroll_into_view_if_needed()
    assert bar.inner_text().strip() == "steps"
    assert bar.locator(".progress-bar").evaluate("bar => bar.style.width") == "75%"


def test_the_explorer_is_alive(page):
    explorer = page.locator(".jp-OutputArea figure.spmd-w")
    explorer.scroll_into_view_if_needed()
    said = explorer.locator(".spmd-w-said")
    assert "float32[8, 6] as P('data', 'model')" in said.inner_text()
    explorer.get_by_label("PartitionSpec").fill("P('model')")
    assert "per device: (4, 6)" in said.inner_text()
    explorer.get_by_role("button", name="device 3").click()
    assert "Device 3 (data 1, model 1)" in explorer.inner_text()
    assert page.complaints == []


def test_a_collective_plays(page):
    # Those before it are the chapter's own.
    player = page.locator(".jp-OutputArea figure.spmd-play").last
    player.scroll_into_view_if_needed()
    shown = player.locator(".spmd-play-frame:visible")
    assert shown.count() == 1
    assert shown.locator("p").inner_text().startswith("Before.")
    assert shown.locator("svg").bounding_box()["height"] > 100
    player.get_by_role("button", name="Step").click()
    shown.get_by_text("Hop 1 of ").wait_for()
    assert page.complaints == []


def test_nothing_of_a_teachers_is_offered(page):
    """nbgrader's buttons need a course; without one they only fail."""
    words = page.locator(".lm-MenuBar, .jp-Toolbar, .jp-SideBar").all_inner_texts()
    assert words
    for word in ("Nbgrader", "Validate", "Create Assignment"):
        assert word not in " ".join(words)
