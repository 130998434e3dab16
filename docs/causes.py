"""``make causes``: docs/why.md's verdicts, from runs at the settings of suite v1 that it trains and
diagnoses; then the file of diagnoses that ships.

    python -m docs.causes [TASK ..] [--runs FOLDER] [--tables]

Finished runs and diagnoses are kept, so an interrupted command goes on. ``--tables`` trains and
diagnoses nothing: the page and its picture are made from the file that ships.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import altair as alt
import polars as pl

from docs import facts
from docs.markdown import insert, table
from pe_lab.cli.api import Run, run
from pe_lab.cli.why import diagnosed
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.explain.cells import Cell, Diagnosed, cells_of
from pe_lab.explain.verdict import CAUSES
from pe_lab.report.html import drawn
from pe_lab.results import verdicts
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.scores import chosen_rates
from pe_lab.results.suite import Suite, load_suite

PAGE = facts.ROOT / "docs" / "why.md"
PLANTED = facts.ROOT / "docs" / "why.planted.json"
PICTURE = facts.ROOT / "docs" / "img" / "why.svg"
FILE = facts.ROOT / "pe_lab" / "results" / "leaderboard" / "v1.why.parquet"
TASKS = ("flipflop", "selective_copy", "recall", "copy_unique", "sort", "needle", "counting")
ENTRIES = (
    "path", "cope", "fox", "fire", "t5", "alibi", "rope", "sinusoidal", "learned", "none", "conv",
    "stick_breaking", "transformer_xl",
)  # fmt: skip
SEEDS = 5
ADDED = {"selective_copy": ("task=selective_copy", "train.steps=1000", "train.batch_size=32")}
"""The words of tasks that suite v1 does not have."""
RATES, TUNING_SEED = (0.003, 0.006, 0.012), 1000
"""Those of cells that suite v1 has not tuned; the lowest error in domain decides, then the loss."""
SHORT = {
    "not learned": "",
    "generalises": "generalises",
    "its own penalty on distance": "own penalty",
    "cannot be diagnosed": "not diagnosed",
}


def tuned(suite: Suite) -> dict[tuple[str, str], float]:
    """(task, entry) -> the rate that the suite chose by the runs that ship."""
    rows, _ = file.shipped_rows(suite)
    chosen = chosen_rates(rows, suite.protocol).drop_nulls("chosen")
    return {(task, entry): lr for task, entry, lr in chosen["task", "entry", "chosen"].iter_rows()}


def trained(task: str, folder: Path, suite: Suite) -> list[Path]:
    """The runs of a task, trained where they are missing."""
    rates, found = tuned(suite), []

    def one(entry: str, lr: float, seed: int, where: str) -> Run:
        print(task, entry, lr, seed, flush=True)
        if task in ADDED:
            words = (*suite.common, *ADDED[task], *suite.words(entry))
        else:
            words = suite.run_words(task, entry)
        return run(*words, f"train.lr={lr}", f"seed={seed}", f"runs_dir={folder / where}")

    def in_domain(done: Run) -> tuple[float, float]:
        row = done.errors.filter(pl.col("split") == IN_DOMAIN).row(0, named=True)
        return row["error"], row["loss"]

    for entry in ENTRIES:
        lr = rates.get((task, entry)) or min(
            RATES, key=lambda lr: in_domain(one(entry, lr, TUNING_SEED, "tuning"))
        )
        found += [one(entry, lr, seed, "score").path for seed in range(SEEDS)]
    return found


def written(cells: Sequence[Cell]) -> str:
    """The table of verdicts: a row for each encoding, a column for each task."""
    by = {(cell.task, cell.pe): cell for cell in cells}
    tasks = [task for task in TASKS if any(cell.task == task for cell in cells)]
    rows = [
        [f"**{entry}**", *(_told(by.get((task, entry))) for task in tasks)] for entry in ENTRIES
    ]
    return table(["", *tasks], rows)


def _told(cell: Cell | None) -> str:
    """A verdict in a few words: of how many seeds, and at which split."""
    if cell is None:
        return "not run"
    found = cell.verdict
    name = SHORT.get(found.cause, found.cause)
    if not name:
        return "-"
    if found.cause == "generalises":
        return f"{name} {found.fitting}/{found.n}"
    if found.cause == "mixed":
        most = max(CAUSES.values(), key=lambda each: found.shares.get(each, 0.0))
        return f"{name} ({most} {100 * found.shares.get(most, 0.0):.0f} %)"
    return f"{name} {found.k}/{found.failing}"


def planted() -> str:
    """The confusion matrices of ``make planted``: a row for each plant."""
    rows, told = [], json.loads(PLANTED.read_text("utf-8"))
    for task, found in told.items():
        for row in found["rows"]:
            others = [f"{cause} {n}" for cause, n in row["verdicts"].items()]
            rows.append([task, row["pe"], row["plant"], row["expected"], ", ".join(others)])
        rows.append([task, "", "**wrong**", "", f"**{found['wrong']} of {found['of']}**"])
    return table(["task", "encoding", "planted", "right", "verdicts of seeds"], rows)


def picture(cells: Sequence[Cell]) -> bytes:
    """The verdicts as a map, coloured by cause, as SVG."""
    values = [
        {"task": cell.task, "encoding": cell.pe, "verdict": cell.verdict.cause,
         "seeds": _counted(cell)}
        for cell in cells
    ]  # fmt: skip
    order = ["generalises", *CAUSES, "mixed", "not retrieval", "cannot be diagnosed", "not learned"]
    colours = [
        "#1b7f4d", "#e6b800", "#e07b39", "#c23b6b", "#7b4fa3", "#3d6fb6", "#20a0b0", "#8c8c8c",
        "#4d4d4d", "#bdbdbd", "#ececec",
    ]  # fmt: skip
    base = alt.Chart(pl.DataFrame(values), width=70 * len(TASKS), height=24 * len(ENTRIES)).encode(
        x=alt.X("task:N", sort=TASKS, title=None, axis=alt.Axis(orient="top", labelAngle=0)),
        y=alt.Y("encoding:N", sort=ENTRIES, title=None),
    )
    scale = alt.Scale(domain=order, range=colours)
    colour = alt.Color("verdict:N", scale=scale, title=None, legend=alt.Legend(symbolLimit=20))
    tiles = base.mark_rect(stroke="#fff", strokeWidth=2).encode(color=colour)
    chart = tiles + base.mark_text(color="#fff", fontSize=11).encode(text="seeds:N")
    return drawn(chart.configure(background="#fff").configure_view(stroke=None).to_dict(), "svg")


def _counted(cell: Cell) -> str:
    """Of the seeds, those that generalise, or else those that fail."""
    found = cell.verdict
    if found.cause == "not learned":
        return ""
    return f"{found.fitting if found.cause == 'generalises' else found.failing}/{found.n}"


def main() -> None:
    """Train, diagnose, and write the file, the table and the picture."""
    parser = argparse.ArgumentParser(prog="python -m docs.causes", description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", default=TASKS)
    parser.add_argument("--runs", type=Path, default=Path("runs/causes"))
    parser.add_argument("--tables", action="store_true")
    args = parser.parse_args()
    suite = load_suite("v1")
    if not args.tables:
        found: list[Diagnosed] = []
        for task in args.tasks:
            # Rates differ between the encodings of a task, and are no part of an entry's name.
            found += [replace(d, label=d.pe) for d in diagnosed(trained(task, args.runs, suite))]
        rows, left = verdicts.shippable(found, suite)
        if left:
            raise SystemExit(f"{left[0]} is no run that suite {suite.name} scores")
        if FILE.exists():
            others = verdicts.read(FILE, suite)[0].filter(~pl.col("task").is_in(args.tasks))
            rows = pl.concat([others, rows]).sort(verdicts.RUN, maintain_order=True)
        verdicts.write(rows, FILE)
    cells = cells_of(verdicts.diagnosed(verdicts.read(FILE, suite)[0]))
    insert(PAGE, written(cells), "make causes")
    insert(PAGE, planted(), "make planted")
    PICTURE.write_bytes(picture(cells))


if __name__ == "__main__":
    main()
