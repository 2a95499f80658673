"""Time attention and a transformer's step on the GPUs of this machine.

    python -m tools.measure.transformer [--only attention,ways,log] [--rows A,B]
        [--minutes N] [--out FOLDER | --for-the-book] [--hlo FILE.zip]
        [--profile FILE.json] [--again] [--tiny] [--list]
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
data, which the book's page and chapter 14 read.
`--hlo` keeps the compiled texts, `--profile` what each kernel took. `--tiny` is a
rehearsal on any devices, with small shapes; its times mean nothing. `--predict`
measures nothing: it makes the predictions of the stored rows again, from the stored
speeds and the texts that `--hlo` kept.
"""

import argparse
import dataclasses
import datetime
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from tools import ROOT
from tools.measure.here import (
    NO_JAX,
    add_places,
    driver,
    has_jax,
    machine,
    place,
    write,
)

FILES = {
    "speeds": "speeds_gpu.json",
    "attention": "attention_gpu.json",
    "ways": "transformer_gpu.json",
    "log": "log_gpu.json",
}
GROUPS = ("attention", "ways", "log")
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
        path = self.path(group)
        rows = json.loads(path.read_text("utf8")) if path.exists() else []
        return [row for row in rows if self._ours(row)]

    def _ours(self, row) -> bool:
        return all(row.get(k) == self.about[k] for k in ("device", "jax"))

    def store(self, group: str, rows: list[dict]) -> None:
        """These rows in place of those with the same key; one row a line."""
        keep = {_key(row): row for row in self.stored(group)}
        keep |= {_key(row): row for row in rows}
        ordered = sorted(keep.values(), key=lambda row: _place(group, row))
        write(self.path(group), ordered)

    def signed(self, row: dict) -> dict:
        """With what every row says of the machine."""
        own = {"devices": row.pop("devices")} if "devices" in row else {}
        return {**row, **self.about, **own, "command": self.said}

    # What is asked of other processes.

    def left(self) -> float:
        return self.given.minutes * 60 - (time.monotonic() - self.begun)

    def child(self, asked: dict, flags: str = "") -> tuple[object, str]:
        """(what it wrote or None, how it ended if not well)."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "row.json"
            command = [sys.executable, "-m", "tools.measure.child"]
            command += [json.dumps(asked), str(out)]
            environment = self._environment(flags)
            longest = max(30.0, min(LONGEST_S, self.left()))
            ended = ""
            with (Path(folder) / "err").open("w+") as err:
                try:
                    done = subprocess.run(
                        command, cwd=ROOT, env=environment, stderr=err, timeout=longest
                    )
                    if done.returncode:
                        err.seek(0)
                        ended = f"stopped with {done.returncode}: {_last(err.read())}"
                except subprocess.TimeoutExpired:
                    ended = f"stopped after {longest:.0f} s"
            found = json.loads(out.read_text("utf8")) if out.exists() else None
            return found, ended

    def _environment(self, flags: str) -> dict:
        before = os.environ.get("XLA_FLAGS", "")
        found = {**os.environ, "XLA_FLAGS": f"{before} {flags}".strip()}
        if not self.given.tiny:
            # Room for NCCL and cuDNN beside the pool. What was tuned stays tuned.
            found.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
            found["JAX_COMPILATION_CACHE_DIR"] = self.cache
        return found

    # The groups.

    def measure_speeds(self) -> None:
        self.say("speeds of this card")
        found, ended = self.child({"task": "speeds", "tiny": self.given.tiny})
        if ended:
            sys.exit(f"nothing can be measured here: {ended}")
        if "speeds" not in found:
            sys.exit(
                f"There is no GPU here that JAX sees, only {found['device']}: run it"
                " where jax[cuda] is installed, or rehearse it with --tiny"
            )
        self.speeds = found.pop("speeds")
        date = datetime.date.today().isoformat()
        self.about = {**found, "driver": driver(), "machine": machine(), "date": date}
        row = {"name": "speeds", **self.speeds}
        self.store("speeds", [self.signed(row)])

    def wanted(self, names: list[str], group: str) -> list[str]:
        chosen = self.given.rows
        names = [n for n in names if not chosen or n in chosen]
        if self.given.again or chosen:
            return names
        rows = self.stored(group)
        there = {r["name"] for r in rows if "error" not in r or _no_room(r)}
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
        from tools.measure.plans import ATTENTION, ATTENTION_SHAPES, TINY_ATTENTION

        shapes = TINY_ATTENTION if self.given.tiny else ATTENTION_SHAPES
        for name in self.wanted(list(ATTENTION), "attention"):
            for both in (False, True):
                what = f"attention, {name}, {'both passes' if both else 'forward'}"
                if not self.has_time(what):
                    return
                self.say(what)
                asked = {"task": "attention", "name": name, "both": both}
                found, ended = self.child({**asked, "shapes": shapes})
                if ended:
                    self.say(ended)
                self.store("attention", [self.signed(row) for row in found or []])

    def ways(self) -> None:
        from tools.measure.plans import ways

        settings = ways(self.given.tiny)
        for name in self.wanted(list(settings), "ways"):
            if not self.has_time(name):
                return
            self.say(name)
            row = self.step("ways", {"name": name}, settings[name])
            self.store("ways", [row])

    def log(self) -> None:
        from tools.measure.model import Setting
        from tools.measure.plans import LOG, changed, start_of_log

        names = self.wanted([change.name for change in LOG], "log")
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
        broke = "error" in row and not _no_room(row) and "stopped" not in row["error"]
        if broke and setting.attention == "cudnn" and self.has_time("another try"):
            self.say(f"   {row['error']}; once more under shard_map")
            mapped = setting.but(attention="cudnn mapped")
            other = self._one_step(group, head, mapped)
            if "error" not in other:
                return other | {"at_first": row["error"]}
        if "error" in row:
            self.say(f"   {row['error']}")
        else:
            held = (row["allocator_peak_bytes"] or 0) / 2**30
            of_peak = f"{_share(row):.1%} of the peak" * bool(row["peak_flops_per_s"])
            self.say(
                f"   measured {row['median_s'] * 1e3:.1f} ms, {held:.1f} GiB {of_peak}"
            )
        return row

    def _one_step(self, group: str, head: dict, setting) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            hlo, profile = Path(folder) / "hlo.gz", Path(folder) / "profile.json"
            asked = {
                **{"task": "step", "setting": dataclasses.asdict(setting)},
                **{"speeds": self.speeds, "hlo": str(hlo) if self.given.hlo else ""},
                "profile": str(profile) if self.given.profile else "",
            }
            found, ended = self.child(asked, setting.flags)
            self._keep(hlo, f"{group}/{head['name']}")
            self._keep_profile(profile, f"{group}/{head['name']}")
        row = {**head, "setting": asked["setting"], **(found or {})}
        if ended and "median_s" not in row and "error" not in row:
            row["error"] = ended
        return self.signed(row)

    def _keep(self, hlo: Path, name: str) -> None:
        if not hlo.exists():
            return
        path = self.given.hlo
        path.parent.mkdir(parents=True, exist_ok=True)
        before = {}
        if path.exists():
            with zipfile.ZipFile(path) as kept:
                before = {n: kept.read(n) for n in kept.namelist()}
        before[f"{name}.txt"] = gzip.decompress(hlo.read_bytes())
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as kept:
            for each, text in before.items():
                kept.writestr(each, text)

    def _keep_profile(self, profile: Path, name: str) -> None:
        if not profile.exists():
            return
        path = self.given.profile
        path.parent.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_text("utf8")) if path.exists() else {}
        before[name] = json.loads(profile.read_text("utf8"))
        path.write_text(json.dumps(before, indent=1), "utf8")

    def say(self, words: str) -> None:
        print(f"[{time.monotonic() - self.begun:4.0f} s] {words}", flush=True)


def _key(row: dict) -> tuple:
    return tuple(row.get(part) for part in ("name", "pass", "seq"))


def _place(group: str, row: dict) -> tuple:
    """Where a row stands in its file: as in the plan."""
    from tools.measure.plans import ATTENTION, LOG, ways

    names = {
        "speeds": ["speeds"],
        "attention": list(ATTENTION),
        "ways": list(ways()),
        "log": [change.name for change in LOG],
    }[group]
    at = names.index(row["name"]) if row["name"] in names else len(names)
    return row.get("pass", ""), row.get("seq", 0), at


def _kept(row: dict, best: dict | None, keep: str) -> bool:
    if "error" in row or keep == "never":
        return False
    return keep == "always" or best is None or _share(row) > _share(best)


def _share(row: dict) -> float:
    """Of the peak; where no data sheet is known, FLOP/s: they rank alike."""
    return row["model_flops"] / row["median_s"] / (row["peak_flops_per_s"] or 1)


def _no_room(row: dict) -> bool:
    said = row.get("error", "").lower()
    return "resource_exhausted" in said or "out of memory" in said


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "Unknown flag" in line]
    return ((named or lines or ["without a word"])[-1])[:300]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    listed = lambda text: [part.strip() for part in text.split(",")]  # noqa: E731
    parser.add_argument("--only", type=listed, default=list(GROUPS))
    parser.add_argument("--rows", type=listed, default=[])
    parser.add_argument("--minutes", type=float, default=9)
    add_places(parser)
    parser.add_argument("--hlo", type=Path)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--list", action="store_true")
    paths = lambda text: list(map(Path, listed(text)))  # noqa: E731
    parser.add_argument("--predict", type=paths)
    given = parser.parse_args()
    given.out = place(given)
    if not has_jax():
        sys.exit(NO_JAX)
    if given.predict:
        from tools.measure.predict import predict_again

        if not (given.out / FILES["speeds"]).exists():
            sys.exit(
                f"{given.out} has no {FILES['speeds']}: which rows? (--out FOLDER)"
            )
        for line in predict_again(given.out, given.predict, FILES):
            print(line)
        return
    unknown = [name for name in given.only if name not in GROUPS]
    if unknown:
        sys.exit(f"--only {','.join(unknown)}: give some of {', '.join(GROUPS)}")
    from tools.measure.plans import ATTENTION, LOG, ways

    names = {
        "attention": list(ATTENTION),
        "ways": list(ways()),
        "log": [change.name for change in LOG],
    }
    if given.list:
        for group, own in names.items():
            print(f"{group}: {', '.join(own)}")
        return
    every = [name for group in given.only for name in names[group]]
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
