"""The tables of ``pe-lab leaderboard``. docs/method.md defines what they show."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from pe_lab.core.console import percent
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.explain.cells import Cell
from pe_lab.results.format import Format, Table, fixed
from pe_lab.suite.claims import Claims, verdicts
from pe_lab.suite.scores import BASELINE, Scores
from pe_lab.suite.suite import SCORE, TUNING

HALF = 0.5
"""An entry works on a task if the 95 % interval of k/n lies above this share."""
NAMED = 3
"""The most entries that a cell of the first table names."""
BRACKETS = "(k/n): fewer than half of the seeds learn the task."
Places = Mapping[tuple[str, str], dict[str, Any]]
"""(entry without its column, column) -> its row of ``Scores.success``."""


def places_on(scores: Scores, task: str) -> Places:
    """Return the success of each entry on a task, in the order of the suite."""
    rows = scores.success().filter(task=task).iter_rows(named=True)
    order = {name: at for at, name in enumerate(scores.suite.all_entries())}
    ordered = sorted(rows, key=lambda row: (order.get(row["entry"], len(order)), row["entry"]))
    return {scores.suite.split(row["entry"]): row for row in ordered}


def count_text(row: Mapping[str, Any] | None) -> str:
    """Write ``7/8``, ``(0/8)`` where fewer than half of the seeds learn the task, else ``-``."""
    if row is None:
        return "-"
    text = f"{row['k']}/{row['n']}"
    return text if 2 * row["learned"] >= row["n"] else f"({text})"


def working(places: Places, column: str) -> list[str]:
    """Return the entries of a column that work on a task, the surest first."""
    names = {base: row for (base, of), row in places.items() if of == column}
    works = [base for base, row in names.items() if row["low"] > HALF]
    return sorted(works, key=lambda base: -names[base]["low"])


def own_entries(scores: Scores) -> list[str]:
    """Return the entries, without their columns, of which no scored run ships."""
    of = scores.cells.group_by("entry", maintain_order=True).agg(
        own=(pl.col("n") == pl.col("yours")).all()
    )
    names = (scores.suite.split(entry)[0] for entry in of.filter("own")["entry"])
    return list(dict.fromkeys(names))


def first_table(scores: Scores, tasks: Sequence[str]) -> Table:
    """Return which entries work on each task: a column for each column of the suite, then the
    counts of rope and of the user's own entries."""
    columns = [*scores.suite.columns][:2]
    shown = [BASELINE, *own_entries(scores)]
    rows = []
    for task in tasks:
        places = places_on(scores, task)
        row: dict[str, Any] = {"task": task}
        for column in columns:
            works, of = working(places, column), sum(of == column for _, of in places)
            named = ", ".join(works[:NAMED]) + ", .." * (len(works) > NAMED)
            row[column] = f"{len(works)} of {of}: {named}" if works else f"0 of {of}"
        for name in shown:
            row[f"{name} "] = ", ".join(count_text(places.get((name, of))) for of in columns)
        rows.append(row)
    return Table(
        pl.DataFrame(rows),
        title=f"Which encodings generalise to every scored split, suite {scores.suite.version}",
        notes=(
            f"Of rope and of yours: k of n seeds, {' and '.join(columns)}. {BRACKETS}",
            "An entry works if the 95 % interval of k/n lies above 50 %.",
        ),
        headings={column: f"works {column}" for column in columns}
        | {f"{name} ": name if name == BASELINE else f"{name} (yours)" for name in shown},
    )


def most_tasks(scores: Scores, tasks: Sequence[str]) -> str:
    """Return a sentence on the entry of each column that works on the most tasks."""
    best = []
    for column in [*scores.suite.columns][:2]:
        wins = Counter(e for task in tasks for e in working(places_on(scores, task), column))
        if wins:
            most = max(wins.values())
            names = [entry for entry in wins if wins[entry] == most]
            named = ", ".join(names[:NAMED]) + ", .." * (len(names) > NAMED)
            best.append(f"{named} ({column}: {most} of {len(tasks)})")
    return f"Works on the most tasks: {'; '.join(best)}." if best else "No entry works on any task."


def entries_table(scores: Scores, tasks: Sequence[str], shown: Collection[str] = ()) -> Table:
    """Return k/n of every entry on every task, in the first two columns of the suite.

    Args:
        shown: these entries; empty: all.
    """
    columns = [*scores.suite.columns][:2]
    of_tasks = {task: places_on(scores, task) for task in tasks}
    bases = list(dict.fromkeys(base for places in of_tasks.values() for base, _ in places))
    order = {name: at for at, name in enumerate(scores.suite.entries)}
    bases.sort(key=lambda base: order.get(base, len(order)))
    rows = []
    for base in (base for base in bases if not shown or base in shown):
        cells = {
            task: [count_text(places.get((base, of))) for of in columns]
            for task, places in of_tasks.items()
        }
        texts = {task: ", ".join(of) if {*of} != {"-"} else "-" for task, of in cells.items()}
        rows.append({"entry": base, **texts})
    schema = dict.fromkeys(("entry", *tasks), pl.String)
    note = f"Seeds that generalise to every scored split, {' and '.join(columns)}. {BRACKETS}"
    return Table(pl.DataFrame(rows, schema), title=note, notes=("-: not run.",))


def task_table(
    scores: Scores, task: str, why: Mapping[tuple[str, str], Cell], shown: Collection[str] = ()
) -> Table:
    """Return for each entry of a task k/n and the median error in % of each split, the rows with
    the highest success rates first.

    Args:
        why: verdicts of ``pe-lab why`` by task and entry.
        shown: these entries, in all columns; empty: all.
    """
    of_task = scores.suite.tasks[task]
    rows = []
    cells = scores.cells.filter(task=task)
    for (entry,), of in cells.group_by("entry", maintain_order=True):
        if shown and not {entry, scores.suite.split(str(entry))[0].partition(" ")[0]} & {*shown}:
            continue
        splits = {row["split"]: row for row in of.iter_rows(named=True)}
        first = next(iter(splits.values()))
        yours = " (yours)" if first["yours"] == first["n"] else ""
        verdict = why.get((task, str(entry)))
        rows.append(
            {"entry": f"{entry}{yours}", "rate": first["lr"], **splits, "time": first["cost"],
             "why": verdict.verdict.cause if verdict else None}
        )  # fmt: skip

    def rank(row: Mapping[str, Any]) -> tuple[float, float]:
        scored = [row[split] for split in of_task.generalises if row.get(split)]
        return -sum(r["p_generalises"] for r in scored), sum(r["median"] for r in scored)

    formats: dict[str, Format] = {"entry": str, "why": str, "rate": "{:g}".format}
    formats |= dict.fromkeys(of_task.thresholds, seeds_text)
    formats["time"] = fixed(2)
    limits = {s: f"{s} <= {percent(limit)}" for s, limit in of_task.thresholds.items()}
    frame = pl.DataFrame(sorted(rows, key=rank), infer_schema_length=None)
    return Table(
        frame,
        {name: write for name, write in formats.items() if name in frame.columns},
        f"{task}: seeds with an error up to the threshold, and the median error in %",
        ("rate: the tuned learning rate. time: of training, relative to rope. why: the verdict of"
         " pe-lab why.",),
        limits,
    )  # fmt: skip


def seeds_text(row: Mapping[str, Any]) -> str:
    """Write ``7/8 0.31``: k/n and the median error in %."""
    return f"{row['k']}/{row['n']} {percent(row['median'])}"


def tuning_table(scores: Scores, task: str, shown: Collection[str] = ()) -> Table:
    """Return the in-domain error in % of the tuning runs of a task at each learning rate."""
    runs = scores.rows.filter(
        pl.col("task") == task, pl.col("phase") == TUNING, pl.col("split") == IN_DOMAIN
    )
    if shown:
        runs = runs.filter(pl.col("entry").is_in([*shown]))
    means = runs.group_by("entry", "lr", maintain_order=True).agg(
        error=pl.col("error").fill_null(1.0).mean(), best=(pl.col("lr") == pl.col("chosen")).any()
    )
    rates = sorted({*means["lr"]})
    rows = [
        {"entry": entry, **{f"{r['lr']:g}": r for r in of.iter_rows(named=True)}}
        for (entry,), of in means.group_by("entry", maintain_order=True)
    ]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    formats: dict[str, Format] = {"entry": str}
    formats |= {f"{rate:g}": lambda cell: percent(cell["error"]) for rate in rates}
    title = f"{task}: in-domain error in % at each learning rate"
    return Table(frame, formats, title, ("The best is the rate that is scored.",))


def claims_table(claims: Claims, tests: pl.DataFrame) -> Table:
    """Return a row for each claim: the lowest success rate of the encoding claimed to be better,
    the highest of the others, the largest p-value and the verdict."""
    decided, rows = verdicts(tests), []
    for name, claim in claims.claims.items():
        of = tests.filter(claim=name)
        first, *others = claim.encodings
        run = [row for row in of.iter_rows(named=True) if row["n_a"] and row["n_b"]]
        low = min(run, key=lambda row: row["k_a"] / row["n_a"], default=None)
        high = max(run, key=lambda row: row["k_b"] / row["n_b"], default=None)
        seeds = None
        if low and high:
            seeds = f"{low['k_a']}/{low['n_a']} and {high['k_b']}/{high['n_b']}"
        than = ", ".join(others) if len(others) <= NAMED else f"{len(others)} others"
        on = "; ".join(f"{task} {', '.join(splits)}" for task, splits in claim.tasks.items())
        verdict = decided[name] + (", exploratory" if of["exploratory"][0] else "")
        rows.append((name, f"{first} over {than}", on, seeds, of["p"].max(), verdict))
    note = (
        "seeds: the lowest success rate of the first and the highest of the others. p: the largest "
        "of its tests."
    )
    formats: dict[str, Format] = dict.fromkeys(("claim", "encodings", "on", "seeds"), str)
    formats |= {"p": "{:.2g}".format, "verdict": str}
    words = dict.fromkeys(("claim", "encodings", "on", "seeds"), pl.String)
    schema = {**words, "p": pl.Float64, "verdict": pl.String}
    frame = pl.DataFrame(rows, schema, orient="row")
    return Table(frame, formats, "Preregistered claims", (note,))


def provenance(scores: Scores, tasks: Sequence[str]) -> Iterator[str]:
    """Yield a line each on failed runs, on the number of runs, and on how they were made."""
    rows = scores.rows.filter(pl.col("task").is_in(tasks), pl.col("split") == IN_DOMAIN)
    failed = rows.filter(state="failed").group_by("task", "entry", maintain_order=True)
    for task, entry, n, message in failed.agg(pl.len(), pl.first("message")).iter_rows():
        yield f"failed: {entry} on {task}, {n} runs: {message}"
    phases = ", ".join(
        f"{n} {phase}" for phase, n in rows["phase"].value_counts(sort=True).iter_rows()
    )
    hours = rows.select(pl.sum_horizontal("train_s", "measure_s").sum()).item() / 3600
    yield f"{len(rows)} runs ({phases}), {hours:.1f} hours"
    excluded = rows.filter(pl.col("phase") == SCORE, ~pl.col("counts"))
    if len(excluded):
        yield f"{len(excluded)} scored runs are left out: their rate was not the tuned one"
    again, flips = scores.cells.select("again", "flips").sum().row(0)
    if again:
        yield f"{again} results of a split were measured again, {flips} are on the other side"
    for column in ("machine", "processor", "revision", "torch"):
        counts = rows[column].drop_nulls().value_counts(sort=True).head(6).iter_rows()
        yield f"{column}: {', '.join(f'{value} ({n})' for value, n in counts)}"
