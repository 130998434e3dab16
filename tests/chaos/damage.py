"""Damaged files of a run folder: noticed, named with a remedy, set aside and not destroyed; no
number is shown, resumed from or measured that is not the recorded one."""

import random
from pathlib import Path

from tests.chaos.case import (
    Case,
    Recorded,
    Records,
    Violation,
    evaluated,
    same_numbers,
    same_summary,
    table,
)
from tests.chaos.warm import Fault, run


def flip_bit(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def change_byte(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] = rng.randrange(256)


def change_digit(content: bytearray, rng: random.Random) -> None:
    digits = [n for n, byte in enumerate(content) if 48 <= byte <= 57]
    content[rng.choice(digits or [0])] = 48 + rng.randrange(10)


def zero_block(content: bytearray, rng: random.Random) -> None:
    start, size = rng.randrange(len(content)), rng.randint(1, 512)
    content[start : start + size] = bytes(len(content[start : start + size]))


def cut_off(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def drop_block(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    del content[start : start + rng.randint(1, 64)]


def repeat_block(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    content[start:start] = content[start : start + rng.randint(1, 64)]


def append(content: bytearray, rng: random.Random) -> None:
    content += rng.randbytes(rng.randint(1, 64))


DAMAGES = (flip_bit,) * 6 + (change_byte,) * 4 + (
    change_digit, change_digit, zero_block, cut_off, drop_block, repeat_block, append
)  # fmt: skip


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_size)


def _damage(case: Case, folder: Path) -> tuple[Path, bytes]:
    """Damage one file; its path and new content."""
    path = case.rng.choice(_files(folder))
    damage = case.rng.choice(DAMAGES)
    before = path.read_bytes()
    content = bytearray(before)
    while content == before:
        damage(content, case.rng)
    path.write_bytes(content)
    case.said.append(f"{damage.__name__} in {path.name}")
    case.counts["corruptions"] += 1
    return path, bytes(content)


def _kept(case: Case, path: Path, content: bytes) -> None:
    """A damaged file that numbers come from is still there, or was set aside."""
    if path.name not in ("summary.json", "checkpoint.pt"):
        return
    found = (p for p in (case.place / "runs").rglob(f"*{path.name}*") if p.is_file())
    if not any(p.read_bytes() == content for p in found):
        raise Violation(f"the damaged {path.name} was destroyed")


def results_hold(case: Case, records: Records, damaged: list[Path]) -> None:
    """``results`` shows the recorded numbers, or not these runs; the other runs are shown."""
    ended = case.run("results", "format=json", "by=pe,seed", statuses=(0, 1))
    if ended.status == 1 or "{" not in ended.output:
        raise Violation(f"results of all runs failed: {ended.output.strip()[-200:]}")
    expected, found = _expected(records), table(ended)
    for key, row in found.items():
        if row != expected.get(key):
            raise Violation(f"results shows other numbers for {key[1]}, seed {key[2]}, {key[3]}")
    missing = {(pe, seed) for _, pe, seed, _ in expected.keys() - found.keys()}
    if lost := missing - {_pe_and_seed(path) for path in damaged}:
        raise Violation(f"results lost the runs {lost}")


def _pe_and_seed(folder: Path) -> tuple[str, int]:
    return folder.parent.name, int(folder.name.removeprefix("seed").partition("-")[0])


_cached: dict[Path, dict] = {}


def _expected(records: Records) -> dict:
    folder = records.several.folder
    if folder not in _cached:
        _cached[folder] = table(run(("results", "format=json", "by=pe,seed"), folder))
    return _cached[folder]


OF_ALL = ("results", "results", "results", "train", "compare", "verify", "report")
OF_ONE = ("eval", "eval", "inspect", "generate", "verify")
"""Commands that read all runs, and those that read one."""


def finished_runs(case: Case, records: Records) -> None:
    """A file in each of some finished runs, of which one is evaluated."""
    case.copy(records.several)
    recorded = case.rng.sample(records.several.runs, case.rng.randint(1, 5))
    damaged = [case.place / path.relative_to(records.several.folder) for path in recorded]
    files = [_damage(case, folder) for folder in damaged]
    command = case.rng.choices(OF_ALL, [6, 6, 6, 6, 1, 3, 0.3])[0]
    if command == "results":
        results_hold(case, records, damaged)
    elif command == "train":
        ended = case.train(records.several)
        if ended.status == 0:
            for ours, theirs in zip(damaged, recorded, strict=True):
                same_summary(ours, theirs)
        elif case.rng.random() < 0.2:
            case.run(*records.several.words, "force=true", statuses=(0,))
            case.equal(records.several)
    elif command == "verify":
        ended = case.run("verify", "format=csv")
        for path, _ in files:
            if path.name in SEALED and path.parent.name not in ended.output:
                raise Violation(f"verify finds nothing wrong with {path.parent.name}/{path.name}")
    else:
        case.run(command)
    for path, content in files:
        _kept(case, path, content)


SEALED = ("summary.json", "checkpoint.pt", "metrics.jsonl")
"""Files with a digest."""


def evaluated_run(case: Case, records: Records) -> None:
    """A file of a finished, evaluated run, which is opened again."""
    case.copy(records.several)
    recorded = records.several.runs[0]
    ours = case.place / recorded.relative_to(records.several.folder)
    path, content = _damage(case, ours)
    run = f"run={ours.relative_to(case.place)}"
    command = case.rng.choice(OF_ONE)
    if command == "eval":
        if path.name != "evaluations.jsonl":
            (ours / "evaluations.jsonl").unlink()
        ended = case.run(*records.evaluation)
        if ended.status == 0 and not evaluated(ours) <= evaluated(recorded):
            raise Violation("eval measured other numbers")
    elif command == "verify":
        ended = case.run("verify", run)
        if ended.status == 0 and path.name in SEALED:
            raise Violation(f"verify finds nothing wrong with the damaged {path.name}")
    else:
        case.run(command, run, *(["prompt=w 0"] if command == "generate" else ["sample=0"]))
    _kept(case, path, content)


def unfinished_run(case: Case, records: Records) -> None:
    """A file of an interrupted run: it goes on to the same numbers, or says what is wrong."""
    recorded = case.rng.choice(records.single)
    ours = _interrupted(case, recorded)
    if ours is None:
        return
    path, content = _damage(case, ours)
    if case.rng.random() < 0.3:
        case.run("results", statuses=(0,))
    ended = case.train(recorded)
    if ended.status == 0:
        same_numbers(ours, recorded.runs[0])
        return
    _kept(case, path, content)
    case.run(*recorded.words, "force=true", statuses=(0,))
    case.equal(recorded)
    _kept(case, path, content)


def _interrupted(case: Case, recorded: Recorded) -> Path | None:
    """The run, stopped somewhere in its second half; None if it was finished."""
    at = case.rng.randint(recorded.operations // 2, recorded.operations)
    case.train(recorded, fault=Fault("kill", at), statuses=(0, -9))
    folders = list(case.place.glob("runs/*/*/seed*"))
    if not folders or (folders[0] / "summary.json").exists():
        return None
    return folders[0]


def link(case: Case, records: Records) -> None:
    """A file of the folder is a link to a file elsewhere, which stays as it is."""
    case.copy(records.several)
    ours = case.place / records.several.runs[0].relative_to(records.several.folder)
    elsewhere = case.place / "elsewhere"
    elsewhere.write_text("somebody's\n")
    name = case.rng.choice([p.name for p in _files(ours)] + [
        ".status.json.part", ".checkpoint.pt.part", ".summary.json.part", "log.txt"
    ])  # fmt: skip
    (ours / name).unlink(missing_ok=True)
    (ours / name).symlink_to(elsewhere)
    case.said.append(f"{name} is a link")
    case.counts["corruptions"] += 1
    if case.rng.random() < 0.5:
        (ours / "summary.json").unlink()
        case.train(records.several)
    else:
        case.run(*records.evaluation, "sequences=2")
    if elsewhere.read_text() != "somebody's\n":
        raise Violation(f"{name}: the file behind the link was overwritten")


CASES = [(finished_runs, 60), (evaluated_run, 15), (unfinished_run, 20), (link, 5)]
