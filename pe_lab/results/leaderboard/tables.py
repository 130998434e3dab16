"""The tables of ``pe-lab leaderboard``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from pe_lab.common.console import percent
from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.families import FITS, Rate, rates_by, ties
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.suite import Suite

NOT_RUN = "not run"
YOURS = "(yours)"
PARTLY = "°"
CLUSTERS = "‡"
GUESSING = "guessing"
RATE = (
    "k/n (95 % Wilson interval in %): of n runs and splits, k have an error at or below the "
    "threshold of the split; the interval counts runs, as splits of one run are not independent"
)
BEST = (
    "the highest rate of the column and those that do not differ from it (exact test of the share "
    "of splits that a run generalises to, Holm over all pairs)."
)
TIES = (
    "entries that share no letter differ (exact test of the share of splits that a run generalises "
    "to, Holm over all pairs)"
)


def by_family(suite: Suite, tasks: Iterable[str]) -> dict[str, list[str]]:
    """These tasks, family by family."""
    families: dict[str, list[str]] = {}
    for name in tasks:
        families.setdefault(suite.tasks[name].family, []).append(name)
    return families


def overview(found: Scores, columns: Mapping[str, list[str]], title: str) -> Table:
    """A row an entry, a column a family (or a task): P(generalises) over its tasks and splits."""
    tasks = [task for several in columns.values() for task in several]
    fits = rates_by(found, FITS, {FITS: tasks})
    rates = rates_by(found, "generalises", dict(columns))
    entries, controls = entry_order(found, tasks)
    best = {name: ties(found, several, entries).best for name, several in columns.items()}
    shown = found.cells.filter(pl.col("task").is_in(tasks))
    cost = dict(shown.group_by("entry").agg(pl.col("cost").median()).iter_rows())

    def line(entry: str) -> list[Cell]:
        cells = [Cell(_rate(fits.get(entry, {}).get(FITS)))]
        for name in columns:
            cells.append(Cell(_rate(rates.get(entry, {}).get(name)), entry in best[name]))
        return [Cell(display_name(found, entry, tasks)), *cells, Cell(_times(cost.get(entry)))]

    rows, closing = [line(entry) for entry in entries], [line(entry) for entry in controls]
    caption = [RATE]
    if any(PARTLY in cell.text for row in (*rows, *closing) for cell in row):
        caption.append(f"{PARTLY}: some of these tasks are not run")
    caption.append("time: of training, in that of rope on the same kind of machine")
    return Table(
        title=title,
        columns=["entry", FITS, *columns, "time"],
        words=1,
        rows=rows,
        caption="; ".join(caption) + ".",
        best=BEST,
        closing=closing,
    )


def task_table(found: Scores, task: str) -> Table:
    """A row an entry, a column a split: how many seeds generalise to it."""
    one = found.suite.tasks[task]
    splits = [IN_DOMAIN, *one.generalises]
    entries, controls = entry_order(found, [task])
    cells = {(row["entry"], row["split"]): row for row in _of(found, task)}
    marks = ties(found, [task], entries).letters

    def line(entry: str) -> list[Cell]:
        first = cells.get((entry, IN_DOMAIN))
        shown = [Cell(_seeds(cells.get((entry, split)))) for split in splits]
        return [
            Cell(display_name(found, entry, [task])),
            Cell(_ranges(marks.get(entry, ""))),
            Cell(_chosen(first)),
            *shown,
            Cell(_times(first["cost"] if first else None)),
        ]

    columns = ["entry", "tie", "rate", f"fits <= {percent(one.fits)}"]
    columns += [f"{split} <= {percent(limit)}" for split, limit in one.generalises.items()]
    rows = [line(entry) for entry in entries]
    shown = [n for n, name in enumerate(columns) if name != "tie" or marks]
    shown.append(len(columns))
    columns.append("time")
    closing = [line(entry) for entry in controls]
    guess = {row["split"]: row["guess"] for row in _of(found, task)}
    if guess:
        closing.append(
            [
                *(Cell(word) for word in (GUESSING, "", "")),
                *(Cell("" if guess.get(s) is None else percent(guess[s])) for s in splits),
                Cell(""),
            ]
        )
    caption = (
        "k/n seeds with an error at or below the threshold of the column (95 % Wilson interval in "
        "%), and the median error in %; rate: the learning rate that tuning chose; time: of "
        "training, in that of rope on the same kind of machine"
    )
    if marks:
        caption += f"; tie: {TIES}"
    return Table(
        title=f"{task} ({one.family})",
        columns=[columns[n] for n in shown],
        words=len(shown) - len(splits) - 1,
        rows=[[row[n] for n in shown] for row in rows],
        caption=caption + _clusters_note(_of(found, task)) + ".",
        closing=[[row[n] for n in shown] for row in closing],
    )


def split_table(found: Scores, task: str, split: str) -> Table:
    """A row an entry: all that is known of its errors on one split."""
    limit = found.suite.tasks[task].threshold(split)
    entries, controls = entry_order(found, [task])
    cells = {row["entry"]: row for row in _of(found, task) if row["split"] == split}
    ranked = sorted(
        entries,
        key=lambda e: (-cells[e]["p_generalises"], cells[e]["median"]) if e in cells else (1, 0),
    )

    def line(entry: str) -> list[Cell]:
        row = cells.get(entry)
        name = Cell(display_name(found, entry, [task]))
        if row is None:
            return [name, Cell(NOT_RUN), *[Cell("")] * 6]
        mean = "" if row["mean"] is None else percent(row["mean"])
        spread = "" if row["sd"] is None else f" ± {percent(row['sd'])}"
        return [
            name,
            Cell(_chosen(row)),
            Cell(_k(row)),
            Cell(percent(row["median"]) if row["measured"] else "-"),
            Cell((CLUSTERS if row["clusters"] else "") + mean + spread),
            Cell(str(row["n"])),
            Cell(str(row["failed"] or "")),
            Cell(_times(row["cost"])),
        ]

    columns = ["entry", "rate", "k/n", "median", "mean ± sd", "seeds", "failed", "time"]
    closing = [line(entry) for entry in controls]
    guess = next((row["guess"] for row in cells.values() if row["guess"] is not None), None)
    if guess is not None:
        closing.append([Cell(GUESSING), Cell(""), Cell(""), Cell(percent(guess)), *[Cell("")] * 4])
    caption = (
        f"k/n seeds with an error of at most {percent(limit or 0)} % (95 % Wilson interval in %), "
        "errors in %; rate: the learning rate that tuning chose; time: of training, in that of "
        "rope on the same kind of machine" + _clusters_note(list(cells.values())) + "."
    )
    rows = [line(entry) for entry in ranked]
    return Table(f"{task}, {split}", columns, 2, rows, caption, closing=closing)


def entry_order(found: Scores, tasks: Sequence[str]) -> tuple[list[str], list[str]]:
    """The entries and the controls: those of the suite in its order, run or not, then others."""
    suite = found.suite
    run = found.cells.filter(pl.col("task").is_in(tasks))["entry"].unique(maintain_order=True)
    known = [*suite.encodings, *suite.controls]
    others = sorted(entry for entry in run if entry not in known)
    controls = [name for name in suite.controls if name in set(run)]
    plain = [name for name in suite.encodings if name != "none"]
    return [*plain, *others], ["none", *controls]


def _of(found: Scores, task: str) -> list[dict[str, Any]]:
    return list(found.cells.filter(pl.col("task") == task).iter_rows(named=True))


def display_name(found: Scores, entry: str, tasks: Iterable[str]) -> str:
    """The entry, marked where some of its runs are the reader's."""
    cells = found.cells.filter((pl.col("entry") == entry) & pl.col("task").is_in(list(tasks)))
    return f"{entry} {YOURS}" if cells["yours"].any() else entry


def _ranges(letters: str) -> str:
    """``abcdf`` as ``a-d f``."""
    runs: list[str] = []
    for letter in letters:
        if runs and ord(letter) == ord(runs[-1][-1]) + 1:
            runs[-1] += letter
        else:
            runs.append(letter)
    if max(map(len, runs), default=0) < 3:
        return letters
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else run for run in runs)


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return NOT_RUN
    partly = PARTLY if rate.tasks < rate.of else ""
    return f"{rate.k}/{rate.n}{partly} ({100 * rate.low:.0f}..{100 * rate.high:.0f})"


def _k(row: Mapping[str, Any]) -> str:
    return f"{row['k']}/{row['n']} ({100 * row['p_low']:.0f}..{100 * row['p_high']:.0f})"


def _seeds(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return NOT_RUN
    median = percent(row["median"]) if row["measured"] else "-"
    return f"{_k(row)} {median}{CLUSTERS if row['clusters'] else ''}"


def _chosen(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['lr']:g}" + ("" if row["rates"] >= 4 else " not tuned")


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _clusters_note(rows: Iterable[Mapping[str, Any]]) -> str:
    if not any(row["clusters"] for row in rows):
        return ""
    return f"; {CLUSTERS}: the seeds fall into two clusters, which a mean does not describe"
