"""Time attention and a transformer's step on the GPUs of this machine.

    python -m tools.measure.transformer [--only attention,ways,log] [--rows A,B]
        [--minutes N] [--out FOLDER | --for-the-book] [--hlo FILE.zip]
        [--again] [--tiny] [--list]
    python -m tools.measure.transformer --predict FILE.zip[,FILE.zip] [--out FOLDER]

Writes attention_gpu.json, transformer_gpu.json (the step of chapter 13's transformer,
laid out in six ways), log_gpu.json (the same step made faster, one change at a time)
and speeds_gpu.json (what the predictions divide by) into my-measurements/. A row is
written as soon as it is measured, and names the card, the driver, the machine, JAX's
version, the date and this command. With one device only attention is timed.
Each is measured in a process of its own, so that a crash or an allocation that fails
costs that row only. Rows that stand in the folder already, of the same card and JAX,
are kept (`--again` measures them again), so an interrupted run goes on where it was.
A file of another card or JAX is put aside. `--for-the-book` writes to the package's
data, which the book's page and chapter 15 read.
`--hlo` keeps the compiled texts. `--tiny` is a rehearsal on any devices, with small
shapes; its times mean nothing. `--predict` measures nothing: it makes the predictions
of the stored rows again, from the stored speeds and the texts that `--hlo` kept.
"""

import dataclasses
import json
import os
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from tools.measure import runner

if not runner.has_jax():
    sys.exit(runner.NO_JAX)

from tools.measure.model import Setting
from tools.measure.plans import (
    ATTENTION_SHAPES,
    LOG,
    NAMES,
    TINY_ATTENTION,
    changed,
    start_of_log,
    ways,
)
from tools.measure.predict import predict_again, zipped
from tools.measure.runner import no_room

FILES = {
    "speeds": "speeds_gpu.json",
    "attention": "attention_gpu.json",
    "ways": "transformer_gpu.json",
    "log": "log_gpu.json",
}
LONGEST_S = 200  # of one process
AN_ATTEMPT_S = 40  # what a row takes about: none is begun with less time left


class Run:
    """One run of this tool: what it asks for, where it writes, when it stops."""

    def __init__(self, given, cache=""):
        self.given = given
        self.begun = time.monotonic()
        self.cache = cache  # a folder for what the compiler tuned
        self.said = "tools/measure/transformer.py" + " --tiny" * given.tiny
        self.about, self.speeds = {}, {}

    # What is stored.

    def path(self, group: str) -> Path:
        return self.given.out / FILES[group]

    def stored(self, group: str) -> list[dict]:
        """The rows in the folder, if they are of this card and JAX."""
        return [row for row in runner.stored(self.path(group)) if self._ours(row)]

    def _ours(self, row) -> bool:
        return all(row.get(k) == self.about[k] for k in ("device", "jax"))

    def store(self, group: str, rows: list[dict]) -> None:
        """These rows in place of those with the same key; one row a line."""
        keep = {_key(row): row for row in self.stored(group)}
        keep |= {_key(row): row for row in rows}
        ordered = sorted(keep.values(), key=lambda row: _place(group, row))
        runner.write(self.path(group), ordered)

    def signed(self, row: dict) -> dict:
        """With what every row says of the machine."""
        own = {"devices": row.pop("devices")} if "devices" in row else {}
        return {**row, **self.about, **own, "command": self.said}

    # What is asked of other processes.

    def left(self) -> float:
        return self.given.minutes * 60 - (time.monotonic() - self.begun)

    def child(self, task: dict, flags: str = "") -> tuple[object, str]:
        """(what it wrote or None, how it ended if not well)."""
        settings = {}
        if not self.given.tiny:
            # Room for NCCL and cuDNN beside the pool. What was tuned stays tuned.
            room = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
            settings["XLA_PYTHON_CLIENT_MEM_FRACTION"] = room
            settings["JAX_COMPILATION_CACHE_DIR"] = self.cache
        how = {"longest": max(30.0, min(LONGEST_S, self.left()))}
        how |= {"flags": flags, "settings": settings}
        return runner.run_child("child", json.dumps(task), **how)

    # The groups.

    def measure_speeds(self) -> None:
        self.say("speeds of this card")
        result, ended = self.child({"task": "speeds", "tiny": self.given.tiny})
        if ended:
            sys.exit(f"nothing can be measured here: {ended}")
        if "speeds" not in result:
            sys.exit(runner.no_gpu(result["device"]))
        self.speeds = result.pop("speeds")
        self.about = {**result, **runner.here()}
        row = {"name": "speeds", **self.speeds}
        self.store("speeds", [self.signed(row)])

    def wanted(self, names: list[str], group: str) -> list[str]:
        chosen = self.given.rows
        names = [n for n in names if not chosen or n in chosen]
        if self.given.again or chosen:
            return names
        rows = self.stored(group)
        there = {r["name"] for r in rows if "error" not in r or no_room(r)}
        skipped = [name for name in names if name in there]
        if skipped:
            self.say(f"{group}: stored already: {', '.join(skipped)}")
        return [name for name in names if name not in there]

    def has_time(self, what: str) -> bool:
        if self.left() > (0 if self.given.tiny else AN_ATTEMPT_S):
            return True
        self.say(f"no time for {what}: {self.left():.0f} s left")
        return False

    def attention(self) -> None:
        shapes = TINY_ATTENTION if self.given.tiny else ATTENTION_SHAPES
        for name in self.wanted(NAMES["attention"], "attention"):
            for both in (False, True):
                what = f"attention, {name}, {'both passes' if both else 'forward'}"
                if not self.has_time(what):
                    return
                self.say(what)
                task = {"task": "attention", "name": name, "both": both}
                result, ended = self.child({**task, "shapes": shapes})
                if ended:
                    self.say(ended)
                self.store("attention", [self.signed(row) for row in result or []])

    def ways(self) -> None:
        settings = ways(self.given.tiny)
        for name in self.wanted(list(settings), "ways"):
            if not self.has_time(name):
                return
            self.say(name)
            row = self.step("ways", {"name": name}, settings[name])
            self.store("ways", [row])

    def log(self) -> None:
        names = self.wanted(NAMES["log"], "log")
        best = None
        for change in LOG:
            rows = {row["name"]: row for row in self.stored("log")}
            if change.name not in names:
                row = rows.get(change.name)
                if row is not None and row.get("kept"):
                    best = row
                continue
            if not self.has_time(change.name):
                return
            tiny = self.given.tiny
            base = Setting(**best["setting"]) if best else start_of_log(tiny)
            setting = changed(base, change, tiny)
            self.say(f"{change.name}: {change.why}")
            if best is not None and setting == base:
                self.say("   nothing changes: it is the best so far already")
                continue
            head = {
                **{"name": change.name, "why": change.why, "chapter": change.chapter},
                "keep": change.keep,
                "after": best["name"] if best else None,
            }
            row = self.step("log", head, setting)
            row["kept"] = _kept(row, best, change.keep)
            self.store("log", [row])
            if row["kept"]:
                best = row
            self.say(f"   {'kept' if row['kept'] else 'not kept'}")

    def step(self, group: str, head: dict, setting) -> dict:
        """One row; if cuDNN's attention is what broke it, once more under shard_map."""
        row = self._one_step(group, head, setting)
        broke = "error" in row and not no_room(row) and "stopped" not in row["error"]
        if broke and setting.attention == "cudnn" and self.has_time("another try"):
            self.say(f"   {row['error']}; once more under shard_map")
            mapped = setting.but(attention="cudnn mapped")
            other = self._one_step(group, head, mapped)
            if "error" not in other:
                return other | {"at_first": row["error"]}
        if "error" in row:
            self.say(f"   {row['error']}")
        else:
            gib = (row["allocator_peak_bytes"] or 0) / 2**30
            of_peak = f"{_share(row):.1%} of the peak" * bool(row["peak_flops_per_s"])
            self.say(
                f"   measured {row['median_s'] * 1e3:.1f} ms, {gib:.1f} GiB {of_peak}"
            )
        return row

    def _one_step(self, group: str, head: dict, setting) -> dict:
        name = f"{group}/{head['name']}"
        with tempfile.TemporaryDirectory() as folder:
            hlo = Path(folder) / "hlo.txt"
            task = {
                **{"task": "step", "setting": dataclasses.asdict(setting)},
                **{"speeds": self.speeds, "hlo": str(hlo) if self.given.hlo else ""},
            }
            result, ended = self.child(task, setting.flags)
            if hlo.exists():
                _keep_text(self.given.hlo, name, hlo.read_text("utf8"))
        row = {**head, "setting": task["setting"], **(result or {})}
        if ended and "median_s" not in row and "error" not in row:
            row["error"] = ended
        return self.signed(row)

    def say(self, words: str) -> None:
        print(f"[{time.monotonic() - self.begun:4.0f} s] {words}", flush=True)


def _keep_text(path: Path, name: str, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (zipped(path) if path.exists() else {}) | {name: text}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as kept:
        for each, own in texts.items():
            kept.writestr(f"{each}.txt", own)


def _key(row: dict) -> tuple:
    return tuple(row.get(part) for part in ("name", "pass", "seq"))


def _place(group: str, row: dict) -> tuple:
    """Where a row stands in its file: as in the plan."""
    names = NAMES.get(group, [])
    at = names.index(row["name"]) if row["name"] in names else len(names)
    return row.get("pass", ""), row.get("seq", 0), at


def _kept(row: dict, best: dict | None, keep: str) -> bool:
    if "error" in row or keep == "never":
        return False
    return keep == "always" or best is None or _share(row) > _share(best)


def _share(row: dict) -> float:
    """Of the peak; where no data sheet is known, FLOP/s: they rank alike."""
    return row["model_flops"] / row["median_s"] / (row["peak_flops_per_s"] or 1)


def main() -> None:
    parser = runner.options(__doc__)
    listed = lambda text: [part.strip() for part in text.split(",")]  # noqa: E731
    paths = lambda text: list(map(Path, listed(text)))  # noqa: E731
    parser.add_argument("--only", type=listed, default=list(NAMES))
    parser.add_argument("--rows", type=listed, default=[])
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--hlo", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--predict", type=paths)
    given = parser.parse_args()
    given.out = runner.place(given)
    if given.predict:
        if not (given.out / FILES["speeds"]).exists():
            sys.exit(
                f"{given.out} has no {FILES['speeds']}: which rows? (--out FOLDER)"
            )
        for line in predict_again(given.out, given.predict, FILES):
            print(line)
        return
    unknown = [name for name in given.only if name not in NAMES]
    if unknown:
        sys.exit(f"--only {','.join(unknown)}: give some of {', '.join(NAMES)}")
    if given.list:
        for group, own in NAMES.items():
            print(f"{group}: {', '.join(own)}")
        return
    every = [name for group in given.only for name in NAMES[group]]
    unknown = [name for name in given.rows if name not in every]
    if unknown:
        sys.exit(f"--rows: there is no {', '.join(unknown)} in {', '.join(given.only)}")
    with tempfile.TemporaryDirectory() as cache:
        run = Run(given, cache)
        run.measure_speeds()
        for group in given.only:
            count = run.about["devices"]
            if group != "attention" and count < 2:
                run.say(f"{group}: {count} device, it needs two: left out")
                continue
            getattr(run, group)()
        run.say("done")


if __name__ == "__main__":
    main()
