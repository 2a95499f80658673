"""The page "Read your own program": what its stored outputs must say.

nbval proves that they come out again.
"""

import re
from itertools import pairwise

import jax
import jax.numpy as jnp
import nbformat
import pytest

from .chapters import ROOT, run

PAGE = ROOT / "notebooks" / "your_program.ipynb"
CELLS = [c for c in nbformat.read(PAGE, as_version=4).cells if c.cell_type == "code"]
FAULTS = ["replicated-state", "communicated-operand", "idle-axis"]
NUMBERS = r" +([\d.]+)" * 4
ROW = re.compile(rf"^(first version|\d [a-z ]+?){NUMBERS} +(\d+)  (\w+)$", re.M)


def printed(of: str) -> str:
    """What the one cell that has this line printed."""
    (cell,) = (c for c in CELLS if of in c.source.splitlines())
    return "".join(
        o.text if o.output_type == "stream" else o.data["text/plain"]
        for o in cell.outputs
    )


def test_the_first_version_has_these_findings_and_no_other():
    report = printed("report = x_ray(*program)")
    assert re.findall(r"^finding: ([a-z-]+):", report, re.M) == FAULTS
    assert "redundancy 2\n" in report


def test_each_repair_lowers_a_cost_and_changes_no_loss():
    last = printed('report = record("4 donated", start(mesh, **donated))')
    rows = ROW.findall(last)
    assert [row[0] for row in rows] == [
        "first version",
        "1 optimizer state",
        "2 batch on both axes",
        "3 interleaved",
        "4 donated",
    ]
    assert [row[6] for row in rows] == ["equal"] * 5
    assert [int(row[5]) for row in rows] == [len(FAULTS), 2, 0, 0, 0]
    assert last.endswith("\n()\n"), "the repaired version has a finding"
    for before, after in pairwise(rows):
        costs = [
            float(b) - float(a) for a, b in zip(before[1:5], after[1:5], strict=True)
        ]
        assert min(costs) < 0
    sent, peak, flops = (float(rows[-1][n]) / float(rows[0][n]) for n in (1, 2, 3))
    assert sent < 0.67
    assert peak < 0.5
    assert flops == pytest.approx(0.5)


def test_the_sums_of_the_page_agree():
    """The lines of the model send what FSDP has to send; two lines send more."""
    by_line = printed("def by_line(report):")
    sent = re.findall(r"^ *([\d.]+) KiB +\d+  (.*)$", by_line, re.M)
    beyond = "optimizer.update", "jnp.concatenate"
    model = [float(k) for k, code in sent if not any(b in code for b in beyond)]
    needed = printed("V = spmd.memory(program[1][0]).total_bytes")
    needed = re.findall(r"^g\w+ *([\d.]+) KiB$", needed, re.M)
    assert len(needed) == len(beyond) == len(sent) - len(model)
    assert sum(model) == pytest.approx(sum(map(float, needed)), abs=0.5)


def test_jit_does_not_trace_a_function_again_for_a_global():
    """The third of the page's five steps."""
    names = {"jnp": jnp, "factor": 1.0}
    exec("def f(x):\n    return factor * x\ndef g(x):\n    return factor * x", names)
    assert jax.jit(names["f"])(jnp.ones(3)).tolist() == [1, 1, 1]
    names["factor"] = 2.0
    assert jax.jit(names["f"])(jnp.ones(3)).tolist() == [1, 1, 1]
    assert jax.jit(names["g"])(jnp.ones(3)).tolist() == [2, 2, 2]


@pytest.mark.long("a page's program compiled twice more")
@pytest.mark.once
def test_a_repair_that_changes_the_losses_is_seen(capsys):
    """Images and their negatives interleaved, and the labels appended."""
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(CELLS):
        run(cell.source, names, f"your_program {number}")
        if "def record(name, program):" in cell.source:
            break
    append, stack = names["append"], jnp.stack

    def half(first, second):
        if first.ndim == 1:
            return append(first, second)
        return stack([first, second], axis=1).reshape(-1, *first.shape[1:])

    version = {**names["first"], "join": half}
    names["record"]("half a repair", names["start"](names["mesh"], **version))
    assert capsys.readouterr().out.splitlines()[-1].endswith("  DIFFER")
