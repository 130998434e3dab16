"""``make test-corruption``: files of run folders copied, cut, replaced, edited and renamed.

    python -m tests.chaos.corruption [mutations=1000] [seed=0]

Each mutation must be named by a command that reads the file, be refused, or change no number that
is shown or measured; the other runs are shown as before, and nothing waits for a pipe. All commands
run in this process. Printed are the outcomes by kind, and each violation.
"""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pe_lab.cli.main import main as pe_lab
from pe_lab.store.run_folder import RunFolder
from tests.chaos.case import SMALL, Violation, options_of, same_numbers
from tests.program import tiny, working_in

SECONDS = 60
"""A command that takes longer hangs."""
FILES = ("config.yaml", "overrides.yaml", "environment.json", "status.json", "metrics.jsonl",
         "checkpoint.pt", "summary.json", "evaluations.jsonl", "log.txt")  # fmt: skip
TEXTS = tuple(name for name in FILES if name not in ("checkpoint.pt", "log.txt"))
NUMBER = re.compile(r"(?<=[ \[])-?\d+(\.\d+)?(e-?\d+)?(?=[,}\]\n])")
OUTCOMES = ("named", "refused", "without effect", "violation")


@dataclass(frozen=True)
class Ended:
    """How a command in this process ended."""

    status: int
    text: str

    @property
    def words(self) -> str:
        """The output without the white space and lines of tables."""
        return re.sub(r"[\s│]+", "", self.text)


@dataclass
class World:
    """Runs that mutations start from, and what the commands show of them."""

    folder: Path
    shown: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").glob("*/*/seed*"))


def _words(pe: str, seed: int) -> list[str]:
    return tiny(*SMALL, f"pe={pe}", f"seed={seed}")


def run(*words: str) -> Ended:
    """A command line, in this process and at most ``SECONDS`` long."""

    def hangs(*_: object) -> None:
        raise Violation(f"pe-lab {words[0]} hangs")

    output = io.StringIO()
    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = pe_lab(words)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    text = output.getvalue()
    if "Traceback (most recent call last)" in text or "debug=true shows where" in text:
        raise Violation(f"pe-lab {words[0]}: {text.strip().splitlines()[-1][:300]}")
    if status and not text.strip():
        raise Violation(f"pe-lab {words[0]}: exit status {status} without a word")
    return Ended(status, text)


def make_world(folder: Path) -> World:
    """Four finished runs, all of them evaluated, and an unfinished one."""
    folder.mkdir(parents=True, exist_ok=True)
    with working_in(folder):
        for pe in ("cope", "rope"):
            for seed in (0, 1):
                assert run(*_words(pe, seed)).status == 0
        assert run("eval", "run=runs", "lengths=8,12").status == 0
        assert run(*_words("alibi", 0)).status == 0
    shutil.rmtree(folder / "runs" / "evaluations")
    world = World(folder)
    unfinished = world.runs[0]
    with working_in(folder):
        shutil.copytree(unfinished, folder / "finished")
        (unfinished / "summary.json").unlink()
        RunFolder(unfinished).set_status("interrupted", 3, 4)
        world.shown = {name: show() for name, (show, _) in COMMANDS.items()}
    return world


# What commands show: for each run, something that is equal where the same is shown.


def _json(*words: str) -> dict[str, Any]:
    ended = run(*words, "format=json")
    if "{" not in ended.text:
        raise Violation(f"pe-lab {' '.join(words)} shows nothing: {ended.text.strip()[:200]}")
    content: dict[str, Any] = json.JSONDecoder().raw_decode(ended.text[ended.text.index("{") :])[0]
    return content | {"text": ended.words}


def _results() -> dict[str, Any]:
    content = _json("results", "by=pe,seed")
    found: dict[str, Any] = {}
    for row in content["rows"]:
        found.setdefault(f"{row['pe']} {row['seed']}", []).append(row)
    for row in content["unfinished"]:
        broken = row["state"] == "broken"
        who = row["path"] if broken else f"{row['pe']} {row['seed']}"
        found[who] = {key: row[key] for key in ("state", "step", "steps")}
    return {"runs": found, "text": content["text"]}


def _evaluations() -> dict[str, Any]:
    content = _json("results", "evaluations=true", "by=pe,seed,encoding")
    found: dict[str, Any] = {}
    for row in content["rows"]:
        found.setdefault(f"{row['pe']} {row['seed']}", []).append(row)
    return {"runs": found, "text": content["text"]}


def _eval() -> dict[str, Any]:
    from pe_lab.core.errors import PeLabError
    from pe_lab.evaluate.evaluate import evaluate

    said: list[PeLabError] = []
    # Folders that were renamed, too; a link to another run is that run.
    paths = sorted({path.parent for name in FILES for path in Path("runs").rglob(name)})
    frame = evaluate(paths, lengths=[8, 12], left_out=said.append)
    found: dict[str, Any] = {}
    for row in frame.drop("path", "seconds", "earlier").iter_rows(named=True):
        found.setdefault(f"{row['pe']} {row['seed']}", []).append(row)
    return {"runs": found, "text": re.sub(r"\s+", "", " ".join(map(str, said)))}


def _report() -> dict[str, Any]:
    ended = run("report", "inspect=none")
    path = Path("runs/report/index.html")
    if ended.status or not path.exists():
        raise Violation(f"report of all runs failed: {ended.text.strip()[:200]}")
    page = re.sub(r"20\d\d-\d\d-\d\d[ T][\d:+]+", "", path.read_text())
    shutil.rmtree(path.parent)
    # Equal ones stand in the order of their folders.
    parts = sorted(re.split("[<>,]", page))
    return {"runs": {"page": parts}, "text": ended.words + re.sub(r"\s+", "", page)}


COMMANDS: dict[str, tuple[Callable[[], dict[str, Any]], float]] = {
    "results": (_results, 1), "evaluations": (_evaluations, 1), "eval": (_eval, 0.5),
    "report": (_report, 0.2),
}  # fmt: skip
"""Each command with how often it follows a mutation."""


# Mutations: each returns the runs that it touched, and what was done.

Touched = tuple[list[Path], str]


def _pick(runs: Sequence[Path], rng: random.Random, names: Sequence[str] = FILES) -> Path:
    """A file of a run."""
    return rng.choice([path for run in [rng.choice(runs)] for name in names
                       if (path := run / name).is_file()])  # fmt: skip


def copied(runs: Sequence[Path], rng: random.Random) -> Touched:
    """A file of one run over that of another."""
    source = _pick(runs, rng)
    target = rng.choice([run for run in runs if run != source.parent]) / source.name
    shutil.copyfile(source, target)
    return [target.parent], f"{source.parent.name}/{source.name} over {target.parent.name}"


def _lines(runs: Sequence[Path], rng: random.Random) -> tuple[Path, list[bytes]]:
    path = _pick(runs, rng, TEXTS)
    return path, path.read_bytes().splitlines(keepends=True)


def dropped(runs: Sequence[Path], rng: random.Random) -> Touched:
    """A line, or some, of a file."""
    path, lines = _lines(runs, rng)
    start = rng.randrange(len(lines))
    del lines[start : start + rng.choice([1, 1, 1, 2, 9])]
    path.write_bytes(b"".join(lines))
    return [path.parent], f"line {start + 1} of {path.name}"


def reordered(runs: Sequence[Path], rng: random.Random) -> Touched:
    """Two lines of a file that differ."""
    path, lines = _lines(runs, rng)
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    path.write_bytes(b"".join(lines))
    return [path.parent], f"lines {one + 1} and {other + 1} of {path.name}"


def torn(runs: Sequence[Path], rng: random.Random) -> Touched:
    """A file that ends within a line, or in the beginning of another one."""
    path = _pick(runs, rng)
    content = path.read_bytes()
    tail = rng.choice([b"", b"", b"", b"[" * 100_000, b'{"a":' * 100_000, b"{", b"\0" * 512])
    at = rng.randrange(len(content)) if not tail or rng.random() < 0.5 else len(content)
    path.write_bytes(content[:at] + tail)
    return [path.parent], f"{path.name} at {at} of {len(content)}, then {tail[:9]!r}"


def damaged(runs: Sequence[Path], rng: random.Random) -> Touched:
    """Bits flipped, a block of zeros, or bytes repeated, as a failing disk or copy does."""
    path = _pick(runs, rng)
    content = bytearray(path.read_bytes())
    at, size = rng.randrange(len(content)), rng.randint(1, 64)
    what = rng.choice(["flip", "flip", "flip", "zeros", "repeat"])
    if what == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif what == "zeros":
        content[at : at + size] = bytes(len(content[at : at + size]))
    else:
        content[at:at] = content[at : at + size]
    path.write_bytes(content)
    return [path.parent], f"{what} at {at} of {path.name}"


def piped(runs: Sequence[Path], rng: random.Random) -> Touched:
    """A pipe, or a folder, in the place of a file or of the lock."""
    path = _place(runs, rng)
    what = rng.choice([os.mkfifo, os.mkfifo, os.mkdir])
    what(path)
    return [_run_of(path)], f"{what.__name__} {path.name}"


def linked(runs: Sequence[Path], rng: random.Random) -> Touched:
    """A link in the place of a file or of the lock."""
    path = _place(runs, rng)
    others = [run / path.name for run in runs if run != path.parent]
    to = rng.choice([Path("nothing"), Path(path.name), Path("/dev/zero"), rng.choice(others),
                     Path("/proc/self/mem")])  # fmt: skip
    path.symlink_to(to.absolute() if len(to.parts) > 1 else to)
    return [_run_of(path)], f"{path.name} to {'/'.join(to.parts[-2:])}"


def numbered(runs: Sequence[Path], rng: random.Random) -> Touched:
    """A number inside valid JSON or yaml is another number."""
    path = _pick(runs, rng, TEXTS)
    text = path.read_text()
    places = list(NUMBER.finditer(text))
    if not places:
        return [path.parent], f"{path.name} has no number"
    place = rng.choice(places)
    new = rng.choice(["0", "1", "2", "0.5", "7", "123456", "-1", "0.25", "1e-5"])
    path.write_text(text[: place.start()] + new + text[place.end() :])
    return [path.parent], f"{place[0]} is {new} at {place.start()} of {path.name}"


def renamed(runs: Sequence[Path], rng: random.Random) -> Touched:
    """The folder of a run has another name, or that of another run."""
    folder = rng.choice(runs)
    other = rng.choice([run for run in runs if run != folder])
    task, pe, name = folder.parts[-3:]
    places = [
        folder.with_name(f"seed7-{folder.name[-8:]}"), folder.with_name(f"{name[:-8]}0123abcd"),
        folder.with_name("mine"), folder.with_name(other.name), other.with_name(name),
        Path("runs", task, "learned", name), Path("runs", "copy", pe, name), Path("runs", name),
    ]  # fmt: skip
    new = rng.choice([place for place in places if place != folder])
    if new.exists():
        # They change places.
        folder.rename("between")
        new.rename(folder)
        Path("between").rename(new)
        return [folder, new], f"{folder} and {new} exchanged"
    new.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(new)
    return [folder, new], f"{folder} is {new}"


def _place(runs: Sequence[Path], rng: random.Random) -> Path:
    """The path of a file that was removed: one of a run, or its lock."""
    run = rng.choice(runs)
    path = rng.choice([*(run / name for name in FILES), run.with_name(f".{run.name}.lock")])
    path.unlink(missing_ok=True)
    return path


def _run_of(path: Path) -> Path:
    if path.suffix == ".lock":
        return path.with_name(path.name[1:].removesuffix(".lock"))
    return path.parent


KINDS: dict[str, Callable[[Sequence[Path], random.Random], Touched]] = {
    "copied between runs": copied, "lines dropped": dropped, "lines reordered": reordered,
    "torn": torn, "bytes changed": damaged, "pipes and folders": piped, "links": linked,
    "numbers changed": numbered, "folders renamed": renamed,
}  # fmt: skip


# One mutation and its outcome.


def attack(world: World, place: Path, kind: str, rng: random.Random) -> tuple[str, str]:
    """A mutation in a copy of the world; what was done, and the outcome."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(world.folder / "runs", place / "runs")
    with working_in(place):
        runs = sorted(Path("runs").glob("*/*/seed*"))
        before = {path: _who(path) for path in runs}
        touched, done = KINDS[kind](runs, rng)
        names = {path.name for path in touched} | {"".join(str(path).split()) for path in touched}
        who = {before[path] for path in touched if path in before}
        try:
            return done, _outcome(world, touched, who, names, rng)
        except Violation as violation:
            return f"{done}: {violation}", "violation"
        except Exception:
            return f"{done}: {traceback.format_exc()}", "violation"


def _who(path: Path) -> str:
    return f"{path.parent.name} {path.name[4:].partition('-')[0]}"


def _outcome(
    world: World, touched: Sequence[Path], who: set[str], names: set[str], rng: random.Random
) -> str:
    verified = run("verify", "format=csv")
    named = verified.status == 1 and _names(verified.words, names)
    if verified.status and not named:
        raise Violation(f"verify names another run: {verified.text[:300]}")
    changed = refused = False
    for command, (show, share) in COMMANDS.items():
        if rng.random() >= share:
            continue
        shown = show()
        expected, found = world.shown[command]["runs"], shown["runs"]
        for run_ in expected.keys() | found.keys():
            if found.get(run_) == expected.get(run_):
                continue
            changed = True
            if not _names(shown["text"], names):
                what = "other runs" if run_ not in who | {"page"} else "other numbers or none"
                raise Violation(f"{command} shows {what} for {run_}, without a word")
            if run_ not in who | {"page"} and run_ in expected:
                raise Violation(f"{command} shows other numbers for {run_}: {found.get(run_)}")
    if rng.random() < 0.3:
        refused = _trained(world, touched, names)
    if named:
        return "named"
    if refused or changed:
        return "refused"
    return "without effect"


def _names(text: str, names: set[str]) -> bool:
    return any(name in text for name in names)


def _trained(world: World, touched: Sequence[Path], names: set[str]) -> bool:
    """The command of the first touched run again: it refuses, or comes to the same numbers."""
    folder = touched[0]
    pe, _, seed = _who(folder).partition(" ")
    if not seed.isdigit() or pe not in ("cope", "rope", "alibi") or len(touched) > 1:
        return False
    ended = run(*_words(pe, int(seed)))
    if ended.status:
        if not _names(ended.words, names):
            raise Violation(f"training is refused without the name: {ended.text[:300]}")
        return True
    theirs = world.folder / folder if pe != "alibi" else world.folder / "finished"
    if (folder / "metrics.jsonl").is_file() and pe == "alibi":
        same_numbers(folder, theirs)
    return False


def campaign(mutations: int, seed: int, folder: Path) -> list[tuple[str, str, str]]:
    """Kind, description and outcome of each mutation."""
    world = make_world(folder / "world")
    found = []
    for number in range(mutations):
        kind = list(KINDS)[number % len(KINDS)]
        done, outcome = attack(world, folder / "place", kind, random.Random(f"{seed} {number}"))
        found.append((kind, f"{number}: {done}", outcome))
        if outcome == "violation":
            print(f"VIOLATION {kind} {number}: {done}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Print the outcomes by kind; 1 if one is a violation."""
    options = options_of(mutations="1000", seed="0")
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(int(options["mutations"]), int(options["seed"]), Path(folder))
    counts = Counter((kind, outcome) for kind, _, outcome in found)
    print("".join(f"{word:>20}" for word in ("", *OUTCOMES)))
    for kind in KINDS:
        print(f"{kind:>20}" + "".join(f"{counts[kind, outcome]:>20}" for outcome in OUTCOMES))
    return int(any(outcome == "violation" for _, _, outcome in found))


if __name__ == "__main__":
    sys.exit(main())
