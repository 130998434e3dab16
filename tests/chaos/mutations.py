"""Changed fields of the files that are read back, half of them with a digest that fits: one
sentence about that run, and the other runs are shown as before."""

import json
import random
from pathlib import Path
from typing import Any

import yaml

from pe_lab.store.digests import sealed
from tests.chaos.case import Case, Records
from tests.chaos.damage import results_hold

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2.5, -0.1, 9, 1e308, 2**63, 10**40, "", "x", "0.5", "[/b]", "[y]x",
    "\x1b[31mred", "\x00", "\u202e", "../../x", "a" * 5000, [], {}, [[]], {"a": {"b": []}},
    {"_target_": "unittest.__main__"}, {"_target_": "os.system", "command": "false"}, [1, "a"],
]  # fmt: skip
UNREADABLE = ("100 000 nested lists", "an alias bomb", "a self-reference")
NESTED = "[" * 100_000 + "]" * 100_000
FILES = ("summary.json",) * 5 + ("config.yaml", "status.json", "metrics.jsonl", "environment.json",
                                 "evaluations.jsonl", "overrides.yaml")  # fmt: skip


def change(value: Any, rng: random.Random) -> str:
    """Change one field somewhere inside, at any depth; returns what was done."""
    where, holder = [], value
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return "nothing"
        key = rng.choice(keys)
        where.append(str(key))
        deeper = isinstance(holder[key], dict | list) and holder[key]
        if not deeper or rng.random() < 0.15:
            break
        holder = holder[key]
    action = rng.choice(["replace"] * 6 + ["delete", "add", "rename"])
    new = rng.choice(VALUES)
    if action == "replace" or not isinstance(holder, dict):
        holder[key] = new
    elif action == "add":
        holder[f"{key}_"] = new
    else:
        old = holder.pop(key)
        if action == "rename":
            holder[key + "x"] = old
    return f"{action} {'.'.join(where)} {str(new)[:40]!r}"


def mutate(path: Path, rng: random.Random) -> str:
    """Change a file so that its format still holds, but for nesting and aliases."""
    text = path.read_text()
    if rng.random() < 0.04:
        path.write_text(text[:10] + NESTED)
        return UNREADABLE[0]
    if path.suffix == ".yaml":
        if rng.random() < 0.05:
            nine = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))
            path.write_text("\n".join(["a0: &a0 [x]", *nine, text]))
            return UNREADABLE[1]
        if rng.random() < 0.05:
            path.write_text("self: &self {me: *self}\n" + text)
            return UNREADABLE[2]
        content = yaml.safe_load(text)
        done = change(content, rng) if isinstance(content, dict | list) else "nothing"
        path.write_text(yaml.safe_dump(content))
        return done
    if path.suffix == ".jsonl":
        lines = text.splitlines()
        number = rng.randrange(len(lines))
        row = json.loads(lines[number])
        done = change(row, rng)
        lines[number] = json.dumps(row)
        path.write_text("\n".join(lines) + "\n")
        return f"line {number + 1}: {done}"
    content = json.loads(text)
    done = change(content, rng)
    if isinstance(content, dict) and "digest" in content and rng.random() < 0.5:
        del content["digest"]
        path.write_text(sealed(content))
        return f"{done}, with a digest that fits"
    path.write_text(json.dumps(content, indent=1))
    return done


COMMANDS = {"inspect": ("sample=0",), "generate": ("prompt=w 0",), "verify": (), "eval": ()}
"""Of one run, with their keys."""


def _edited(case: Case, folder: Path) -> bool:
    """Edit one file of a run; whether its digest fits nevertheless."""
    name = case.rng.choice(FILES)
    if name == "evaluations.jsonl" and not (folder / name).exists():
        name = "summary.json"
    if name in ("config.yaml", "status.json") and case.rng.random() < 0.7:
        # Of finished runs they are not read.
        (folder / "summary.json").unlink()
    said = []
    for _ in range(case.rng.choice([1, 1, 1, 3])):
        said.append(mutate(folder / name, case.rng))
        if said[-1] in UNREADABLE:
            break
    case.said.append(f"{folder.name}/{name}: {', '.join(said)}")
    case.counts["mutations"] += 1
    return any("digest" in text for text in said)


def some_runs(case: Case, records: Records) -> None:
    """A file in each of some runs, then a command that reads all of them."""
    case.copy(records.several)
    recorded = case.rng.sample(records.several.runs, case.rng.randint(1, 5))
    edited = [case.place / path.relative_to(records.several.folder) for path in recorded]
    # Not any(): every run is edited.
    fits = sum([_edited(case, folder) for folder in edited])
    command = case.rng.choices(["results", "train", "compare", "verify", "report"],
                               [12, 4, 2, 2, 0.4])[0]  # fmt: skip
    if command == "results" and not fits:
        results_hold(case, records, edited)
    elif command == "train":
        case.train(records.several)
    elif command == "verify":
        case.run("verify")
    else:
        case.run(command, statuses=(0,))


def one_run(case: Case, records: Records) -> None:
    """A file of one run, then a command that opens it."""
    case.copy(records.several)
    ours = case.place / records.several.runs[0].relative_to(records.several.folder)
    _edited(case, ours)
    command = case.rng.choice(list(COMMANDS))
    run = f"run={ours.relative_to(case.place)}"
    case.run(*(records.evaluation if command == "eval" else (command, run, *COMMANDS[command])))


CASES = [(some_runs, 75), (one_run, 25)]
