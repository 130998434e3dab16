"""The tables of ``pe-lab leaderboard``. docs/method.md defines what they show."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from pe_lab.core.console import percent
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.explain.cells import Cell
from pe_lab.results.format import Format, Table
from pe_lab.suite.claims import judge_claims
from pe_lab.suite.scores import BASELINE, WORST, Scores
from pe_lab.suite.suite import TUNING

HALF = 0.5
"""An entry works on a task if the 95 % interval of k/n lies above this share."""
NAMED = 3
"""The most entries that a cell of the first table names."""
BRACKETS = "(k/n): fewer than half of the seeds learn the task."


def count_seeds(scores: Scores) -> pl.DataFrame:
    """Return ``Scores.success`` in the order of the suite, with the entry's name without its
    column (``base``), the ``column``, whether it ``works``, whether most seeds ``fit`` in domain,
    and ``text``: ``7/8``, or ``(0/8)`` where most do not."""
    suite, success = scores.suite, scores.success()
    order = {entry: at for at, entry in enumerate(suite.all_entries())}
    names = [
        (entry, *suite.split(entry), order.get(entry, len(order)))
        for entry in success["entry"].unique().sort()
    ]
    schema = {**dict.fromkeys(("entry", "base", "column"), pl.String), "order": pl.Int64}
    text, fit = pl.format("{}/{}", "k", "n"), 2 * pl.col("learned") >= pl.col("n")
    return (
        success.join(pl.DataFrame(names, schema, orient="row"), on="entry")
        .with_columns(
            works=pl.col("low") > HALF,
            fit=fit,
            text=pl.when(fit).then(text).otherwise(pl.format("({})", text)),
        )
        .sort("order", "entry", "task")
    )


def first_table(scores: Scores, tasks: Sequence[str]) -> Table:
    """Return which entries work on each task: a column for each of the first two columns of the
    suite, then the counts of rope and of the user's own entries."""
    columns, every = [*scores.suite.columns][:2], count_seeds(scores)
    own = every.group_by("base", maintain_order=True).agg((pl.col("n") == pl.col("yours")).all())
    shown = [BASELINE, *own.filter("n")["base"]]
    counts = [
        {
            "task": task,
            "column": column,
            "text": _works_text(every.filter(task=task, column=column)),
        }
        for task in tasks
        for column in columns
    ]
    of_shown = _counts_by_column(every.filter(pl.col("base").is_in(shown)), columns)
    # A column of the table may have the name of an encoding, as conv.
    of_shown = of_shown.with_columns(pl.format("{} ", "base"))
    of_shown = of_shown.pivot("base", [f"{base} " for base in shown], index="task", values="text")
    frame = pl.DataFrame(counts).pivot("column", index="task", values="text")
    frame = frame.join(of_shown, on="task", how="left", maintain_order="left")
    title = f"Which encodings generalise to every scored split, suite {scores.suite.version}"
    note = "An entry works if the 95 % interval of k/n lies above 50 %."
    right = f"On the right: k of n seeds, {' and '.join(columns)}. {BRACKETS}"
    heads = {column: f"works {column}" for column in columns}
    heads |= {f"{base} ": base if base == BASELINE else f"{base} (yours)" for base in shown}
    return Table(frame.select("task", *heads), {}, title, (note, right), heads)


def _works_text(entries: pl.DataFrame) -> str:
    """Write how many of the entries work, and the best of them."""
    works = entries.filter("works").sort("low", descending=True, maintain_order=True)["base"]
    named = ", ".join(works[:NAMED]) + ", .." * (len(works) > NAMED)
    return f"{len(works)} of {len(entries)}" + f": {named}" * (len(works) > 0)


def _counts_by_column(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return for each ``base`` and ``task`` the ``text`` of all columns: ``6/8, 8/8``."""
    rows = rows.filter(pl.col("column").is_in(columns))
    wide = rows.pivot("column", columns, index=["base", "task"], values="text").fill_null("-")
    return wide.select("base", "task", text=pl.concat_str(columns, separator=", "))


def describe_best(scores: Scores, tasks: Sequence[str]) -> str:
    """Return a sentence on the entry that works on the most tasks."""
    works = count_seeds(scores).filter("works", pl.col("task").is_in(tasks))
    if works.is_empty():
        return "No entry works on any task."
    wins = works["entry"].value_counts(sort=True)
    names = wins.filter(pl.col("count") == wins["count"][0])["entry"].sort()
    return f"Works on the most tasks, {wins['count'][0]} of {len(tasks)}: {', '.join(names)}."


def entries_table(scores: Scores, tasks: Sequence[str], shown: Collection[str] = ()) -> Table:
    """Return k/n of every entry on every task, in the first two columns of the suite.

    Args:
        shown: these entries; empty: all.
    """
    columns = [*scores.suite.columns][:2]
    rows = count_seeds(scores).filter(pl.col("task").is_in(tasks))
    if shown:
        rows = rows.filter(pl.col("base").is_in([*shown]) | pl.col("entry").is_in([*shown]))
    frame = _counts_by_column(rows, columns).pivot("task", index="base")
    known = [task for task in tasks if task in frame.columns]
    title = f"Seeds that generalise to every scored split, {' and '.join(columns)}. {BRACKETS}"
    return Table(frame.select(pl.col("base").alias("entry"), *known), title=title)


def task_table(
    scores: Scores, task: str, why: Mapping[tuple[str, str], Cell], shown: Collection[str] = ()
) -> Table:
    """Return for each entry of a task k/n and the median error in % of each split, the rows with
    the highest success rates first.

    Args:
        why: verdicts of ``pe-lab why`` by task and entry.
        shown: these entries, in all columns; empty: all.
    """
    of_task, rows = scores.suite.tasks[task], []
    for (entry,), of in scores.cells.filter(task=task).group_by("entry", maintain_order=True):
        base = scores.suite.split(str(entry))[0].partition(" ")[0]
        if shown and not {entry, base} & {*shown}:
            continue
        splits = {row["split"]: row for row in of.iter_rows(named=True)}
        first = next(iter(splits.values()))
        facts = {"rate": first["lr"], "time": first["cost"], "yours": first["yours"] == first["n"]}
        verdict = why[task, entry].verdict.cause if (task, entry) in why else None
        rows.append({"entry": entry, "why": verdict, **facts, **splits})

    def rank(row: Mapping[str, Any]) -> tuple[float, float]:
        scored = [row[split] for split in of_task.generalises if row.get(split)]
        return -sum(r["p_generalises"] for r in scored), sum(r["median"] for r in scored)

    frame = pl.DataFrame(sorted(rows, key=rank), infer_schema_length=None)
    yours = pl.when("yours").then(pl.format("{} (yours)", "entry")).otherwise("entry")
    formats: dict[str, Format] = {"name": str, "why": str, "rate": "{:g}".format}
    formats |= {split: seeds_text for split in of_task.thresholds if split in frame.columns}
    heads = {s: f"{s} <= {percent(limit)}" for s, limit in of_task.thresholds.items()}
    note = "rate: the tuned learning rate. time: of training, relative to rope. why: " + (
        "the verdict of pe-lab why."
        if any(of == task for of, _ in why)
        else "no run of this task was diagnosed with pe-lab why."
    )
    return Table(
        frame.with_columns(name=yours),
        formats | {"time": "{:.2f}".format},
        f"{task}: seeds with an error up to the threshold, and the median error in %",
        (note,),
        {"name": "entry", **heads},
    )


def seeds_text(row: Mapping[str, Any]) -> str:
    """Write ``7/8 0.31``: k/n and the median error in %."""
    return f"{row['k']}/{row['n']} {percent(row['median'])}"


def tuning_table(scores: Scores, task: str, shown: Collection[str] = ()) -> Table:
    """Return the in-domain error of the tuning runs of a task at each learning rate, and the rate
    that was chosen."""
    runs = scores.rows.filter(phase=TUNING, task=task, split=IN_DOMAIN)
    if shown:
        runs = runs.filter(pl.col("entry").is_in([*shown]))
    runs = runs.sort("lr").with_columns(
        pl.col("error").fill_null(WORST), rate=pl.col("lr").cast(pl.String)
    )
    frame = runs.pivot("rate", index=["entry", "chosen"], values="error", aggregate_function="mean")
    rates = runs["rate"].unique(maintain_order=True)
    formats: dict[str, Format] = {"entry": str, "chosen": "{:g}".format}
    title = f"{task}: in-domain error in % at each learning rate, and the rate that is scored"
    return Table(frame.sort("entry"), formats | dict.fromkeys(rates, percent), title)


def claims_table(tests: pl.DataFrame) -> Table:
    """Return a row for each test of each claim: that more seeds of a than of b generalise."""
    verdict_of = judge_claims(tests)
    seeds = {
        f"seeds {side}": pl.format("{}/{}", f"k_{side}", f"n_{side}").replace("0/0", None)
        for side in "ab"
    }
    of_claim = pl.col("claim").replace_strict(verdict_of, return_dtype=pl.String)
    frame = tests.with_columns(**seeds, of_claim=of_claim)
    words = dict.fromkeys(("claim", "task", "split", "a", "b", "of_claim"), str)
    numbers: dict[str, Format] = {"seeds a": str, "seeds b": str, "p": "{:.2g}".format}
    note = "A claim is supported if each of its tests is. p: Fisher's exact test, one-sided."
    title = "Preregistered claims: a generalises in more seeds than b"
    return Table(frame, words | numbers, title, (note,), {"of_claim": "the claim is"})


def describe_runs(scores: Scores, tasks: Sequence[str]) -> Iterator[str]:
    """Yield a line each on results with more steps, failed runs, and what the runs took."""
    rows = scores.rows.filter(pl.col("task").is_in(tasks), pl.col("split") == IN_DOMAIN)
    for times in scores.suite.protocol.longer:
        longer = scores.success(f"steps_x{times}").filter(pl.col("task").is_in(tasks))
        for (task,), of in longer.group_by("task", maintain_order=True):
            texts = (f"{entry} {k}/{n}" for entry, k, n in of.select("entry", "k", "n").iter_rows())
            yield f"{task} with {times} times the steps: {', '.join(texts)}"
    failed = rows.filter(state="failed").group_by("task", "entry", maintain_order=True)
    for task, entry, n, message in failed.agg(pl.len(), pl.first("message")).iter_rows():
        yield f"failed: {entry} on {task}, {n} runs: {message}"
    hours = rows.select(pl.sum_horizontal("train_s", "measure_s").sum()).item() / 3600
    yield f"{len(rows)} runs, {hours:.1f} hours"
