"""What the workflows do: run what people run, and publish what the tests have read."""

import copy
import os
import re

import pytest
import yaml

from .site_reading import ROOT, SITE

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
READ = {"contents": "read"}
PUBLISH = {"pages": "write", "id-token": "write"}
NEWEST = "3.13"  # whose JAX made the outputs that the site shows
UPLOADED = f"github.event_name == 'push' && matrix.python == '{NEWEST}'"
TESTS, UPLOAD, DEPLOY = (
    ".ci/run",
    "actions/upload-pages-artifact",
    "actions/deploy-pages",
)


def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text("utf8")
    return set(re.findall(r"^([a-z]+):", text, re.M))


def steps_of(job: dict) -> list[str]:
    """What each step of a job does, in order."""
    return [step.get("run") or step["uses"].split("@")[0] for step in job["steps"]]


def is_command(line: str) -> bool:
    """A command that the repository has: a target of make, or a program of its own."""
    first, _, rest = line.partition(" ")
    if first == "make":
        return set(rest.split()) <= targets() and bool(rest)
    return os.access(ROOT / first, os.X_OK) and not (ROOT / first).is_dir()


def faults(workflow: dict) -> list[str]:
    complaints = []
    if workflow.get("permissions") != READ:
        complaints.append("the workflow may do more than read")
    for name, job in workflow["jobs"].items():
        does = steps_of(job)
        allowed = PUBLISH if DEPLOY in does else READ
        if job.get("permissions", READ) != allowed:
            complaints.append(f"{name}: permissions {job.get('permissions')}")
        if not job.get("timeout-minutes"):
            complaints.append(f"{name}: no limit of time")
        for step in job["steps"]:
            if "run" in step and not is_command(step["run"]):
                complaints.append(f"{name}: {step['run']!r} is no command here")
            if "uses" in step and not re.search(r"@v\d+$", step["uses"]):
                complaints.append(f"{name}: {step['uses']} without a version")
        if UPLOAD in does:
            complaints += _upload(name, job, does)
        if DEPLOY in does:
            complaints += _deploy(name, job, workflow)
    return complaints


def _upload(name: str, job: dict, does: list[str]) -> list[str]:
    complaints = []
    at = does.index(UPLOAD)
    if at == 0 or does[at - 1] != TESTS:
        complaints.append(f"{name}: what is uploaded is not what {TESTS} has read")
    step = job["steps"][at]
    if ROOT / step["with"]["path"] != SITE:
        complaints.append(f"{name}: {step['with']['path']} is not the site")
    if step.get("if") != UPLOADED:
        complaints.append(
            f"{name}: not only the newest Python's site of a push is uploaded"
        )
    pythons = job["strategy"]["matrix"]["python"]
    if pythons[0] != NEWEST or job["env"].get("PYTHON") != "python${{ matrix.python }}":
        complaints.append(f"{name}: {NEWEST} has no job of its own")
    return complaints


def _deploy(name: str, job: dict, workflow: dict) -> list[str]:
    complaints = []
    before = workflow["jobs"].get(job.get("needs"), {"steps": []})
    if UPLOAD not in steps_of(before):
        complaints.append(f"{name}: does not wait for the tests")
    if job.get("if") != "github.event_name == 'push'":
        complaints.append(f"{name}: a pull request is published")
    on = workflow[True]  # `on` is a truth to YAML
    if on.get("push") != {"branches": ["main"]}:
        complaints.append(f"{name}: another branch is published")
    return complaints


def read(path) -> dict:
    return yaml.safe_load(path.read_text("utf8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_does_what_it_should(path):
    assert faults(read(path)) == []


def test_one_workflow_publishes_and_it_runs_all_tests():
    jobs = [job for path in WORKFLOWS for job in read(path)["jobs"].values()]
    assert sum(DEPLOY in steps_of(job) for job in jobs) == 1
    lines = (ROOT / TESTS).read_text("utf8").strip().splitlines()
    assert lines[-1] == "exec make test-all"
    assert "export SPMD_BROWSER_REQUIRED=1 SPMD_RUNTIMES_REQUIRED=1" in lines
    runner = (ROOT / "tools" / "check" / "run_tests.py").read_text("utf8")
    assert '"tools.book.build_site"' in runner


def spoil(change) -> list[str]:
    (workflow,) = (read(path) for path in WORKFLOWS if path.stem == "test")
    workflow = copy.deepcopy(workflow)
    change(workflow, workflow["jobs"]["test"], workflow["jobs"]["publish"])
    return faults(workflow)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w, t, p: w.pop("permissions"), "may do more than read"),
        (lambda w, t, p: p["permissions"].update(contents="write"), "permissions"),
        (lambda w, t, p: t.update(permissions=PUBLISH), "test: permissions"),
        (lambda w, t, p: t.pop("timeout-minutes"), "no limit of time"),
        (lambda w, t, p: t["steps"].append({"run": "make nothing"}), "no command"),
        (lambda w, t, p: t["steps"].append({"run": "curl x"}), "no command"),
        (lambda w, t, p: p["steps"][0].update(uses=DEPLOY), "without a version"),
        (lambda w, t, p: t["steps"].insert(3, {"run": "make book"}), "not what"),
        (lambda w, t, p: t["steps"][3]["with"].update(path="book"), "not the site"),
        (lambda w, t, p: t["steps"][3].pop("if"), "not only the newest"),
        (lambda w, t, p: t["env"].pop("PYTHON"), "has no job of its own"),
        (lambda w, t, p: p.pop("needs"), "does not wait"),
        (lambda w, t, p: p.pop("if"), "a pull request is published"),
        (lambda w, t, p: w[True].update(push=None), "another branch"),
    ],
)
def test_a_fault_is_seen(change, words):
    assert any(words in complaint for complaint in spoil(change))
