"""The tables of ``pe-lab leaderboard``. docs/method.md defines what they show."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import polars as pl

from pe_lab.core.console import percent
from pe_lab.core.errors import counted
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.explain.verdict import DiagnosedCell
from pe_lab.results.format import Format, Table
from pe_lab.results.statistics import LEVEL, holm
from pe_lab.suite.claims import judge_claims
from pe_lab.suite.scores import WORST, Scores, compare_with_text, fisher
from pe_lab.suite.suite import TUNING

# An entry generalises on a task if the 95 % interval of k/n lies above this share.
HALF = 0.5
# Of an entry on a task. It is learned if at least half of the seeds fit in domain.
NOT_LEARNED, LEARNED, AT_LENGTH = "not learned", "learned, not at length", "learned and at length"
# Tasks that tell entries apart least: nearly all learn the first, none generalises on the others.
LESS_TELLING = ("majority", "navigation", "addition")
CELL = (
    "7/8, 5/7: 7 of 8 seeds learn the task, 5 of these 7 generalise to every scored split. "
    "not learned 3/8: fewer than half of the seeds learn it."
)


def count_seeds(scores: Scores) -> pl.DataFrame:
    """Return ``Scores.success`` in the order of the suite, with the entry's name without its
    column (``base``), the ``column``, the ``label`` of the base, whether it ``works``, its
    ``state``, and ``text``: ``7/8, 5/7`` if 7 of 8 seeds learn the task and 5 of these generalise.
    """
    suite, success = scores.suite, scores.success()
    order = {entry: at for at, entry in enumerate(suite.all_entries())}
    names = [
        (entry, *suite.split(entry), order.get(entry, len(order)))
        for entry in success["entry"].unique().sort()
    ]
    schema = {**dict.fromkeys(("entry", "base", "column"), pl.String), "order": pl.Int64}
    learned = pl.col("learned") >= HALF * pl.col("n")
    works, named_alike = pl.col("low") > HALF, pl.col("base").is_in([*suite.columns, "none"])
    at_length = pl.when(works).then(pl.lit(AT_LENGTH)).otherwise(pl.lit(LEARNED))
    text = pl.format("{}/{}, {}/{}", "learned", "n", "both", "learned")
    return (
        success.join(pl.DataFrame(names, schema, orient="row"), on="entry")
        .with_columns(
            works=works & learned,
            state=pl.when(learned).then(at_length).otherwise(pl.lit(NOT_LEARNED)),
            text=pl.when(learned)
            .then(text)
            .otherwise(pl.format(f"{NOT_LEARNED} {{}}/{{}}", "learned", "n")),
            # Beside a column called conv and the word none.
            label=pl.when(named_alike).then(pl.format("pe={}", "base")).otherwise("base"),
        )
        .sort("order", "entry", "task")
    )


def is_shown(shown: Collection[str]) -> pl.Expr:
    """Return whether an ``entry`` is one of these, in any column; empty: all."""
    name = pl.col("entry").str.extract(r"^([^+ ]+)")
    return pl.lit(not shown) | pl.col("entry").is_in([*shown]) | name.is_in([*shown])


def select_telling(tasks: Sequence[str]) -> list[str]:
    """Return the tasks without those that tell entries apart least, if others are among them."""
    return [task for task in tasks if task not in LESS_TELLING] or [*tasks]


def compare_columns(scores: Scores) -> pl.DataFrame:
    """Return for each ``task`` and ``label`` of the first two columns: ``k``, ``n``, ``state`` and
    ``text`` alone and in the other one (``k_other``), ``p`` of Fisher's exact test of k of n, and
    ``p_holm``, corrected over all rows."""
    columns, counts = [*scores.suite.columns][:2], count_seeds(scores)
    alone, other = (
        counts.filter(column=column).select("task", "label", "k", "n", "state", "text")
        for column in (columns[0], columns[-1])
    )
    pairs = alone.join(other, ["task", "label"], suffix="_other", maintain_order="left")
    seeds = pairs.select("k", "n", "k_other", "n_other").iter_rows()
    ps = [fisher((k, n), (k_other, n_other)) for k, n, k_other, n_other in seeds]
    tested = pl.DataFrame({"p": ps, "p_holm": holm(ps)}, dict.fromkeys(("p", "p_holm"), pl.Float64))
    return pairs.hstack(tested)


def columns_table(scores: Scores, tasks: Sequence[str], shown: Collection[str] = ()) -> Table:
    """Return where the first two columns differ at the level of 5 %, on these tasks.

    Args:
        shown: these entries; empty: all. All pairs count in the correction.
    """
    pairs, columns = compare_columns(scores), [*scores.suite.columns][:2]
    formats: dict[str, Format] = dict.fromkeys(("task", "label", "text", "text_other"), str)
    formats |= dict.fromkeys(("p", "p_holm"), "{:.2g}".format)
    note = f"p: Fisher's exact test of these seeds. p_holm: corrected over all {len(pairs)} pairs."
    return Table(
        pairs.filter(
            pl.col("p") <= LEVEL,
            pl.col("task").is_in([*tasks]),
            pl.col("label").str.strip_prefix("pe=").is_in([one.split("+")[0] for one in shown])
            | pl.lit(not shown),
        ).sort("p", maintain_order=True),
        formats,
        f"Where {columns[-1]} changes how many seeds generalise to every scored split",
        (note, CELL),
        {"label": "entry", "text": columns[0], "text_other": columns[-1]},
    )


def entries_tables(
    scores: Scores, tasks: Sequence[str], shown: Collection[str] = ()
) -> list[Table]:
    """Return what entries do on each task: a table of those that have run at least half of the
    telling tasks, on these, and one of the others.

    Args:
        shown: these entries, on all tasks; empty: all.
    """
    counts = count_seeds(scores).filter(pl.col("task").is_in(tasks), is_shown(shown))
    telling = [*tasks] if shown else select_telling(tasks)
    is_telling = pl.col("task").is_in(telling)
    most = pl.col("task").filter(is_telling).n_unique().over("base") >= len(telling) / 2
    parts = {
        "Seeds that learn a task, and how many of these generalise": most & is_telling,
        "Entries with fewer tasks": ~most,
    }
    tables = [_states_table(counts.filter(which), tasks, title) for title, which in parts.items()]
    return [table for table in tables if len(table.frame)]


def _states_table(counts: pl.DataFrame, tasks: Sequence[str], title: str) -> Table:
    counts = counts.sort(pl.col("order").min().over("base"), "order", maintain_order=True)
    wide = counts.pivot("task", index=["label", "column"], values="text")
    names = ["column", *(task for task in tasks if task in wide.columns)]
    return Table(wide.select(pl.col("label").alias("entry"), *names), {}, title, (CELL,))


def task_table(
    scores: Scores,
    task: str,
    why: Mapping[tuple[str, str], DiagnosedCell],
    shown: Collection[str] = (),
) -> Table:
    """Return for each entry of a task how many seeds learn it and how many generalise to every
    scored split, then k/n and the median error in % of each split, the highest rates first.

    Args:
        why: verdicts of ``pe-lab why`` by task and entry.
        shown: these entries, in all columns; empty: all.
    """
    of_task, rows = scores.suite.tasks[task], []
    cells = scores.cells.filter(task=task).partition_by("entry", as_dict=True)
    for seeds in count_seeds(scores).filter(is_shown(shown), task=task).iter_rows(named=True):
        entry, k, n = seeds["entry"], seeds["k"], seeds["n"]
        of = cells[(entry,)]
        splits = {row["split"]: row for row in of.iter_rows(named=True)}
        first, scored = next(iter(splits.values())), of.filter(pl.col("split") != IN_DOMAIN)
        facts = {
            "rank": (-scored["p_generalises"].sum(), scored["median"].sum()),
            "why": why[task, entry].verdict.cause if (task, entry) in why else None,
            "rate": first["lr"],
            "time": first["cost"],
            "learned": f"{seeds['learned']}/{n}",
            "every split": f"{k}/{n} [{100 * seeds['low']:.0f}, {100 * seeds['high']:.0f}]",
        }
        rows.append({**seeds, **facts, **splits})
    frame = pl.DataFrame(sorted(rows, key=itemgetter("rank")), infer_schema_length=None)
    yours = pl.when(pl.col("yours") == pl.col("n")).then(pl.format("{} (yours)", "label"))
    formats: dict[str, Format] = dict.fromkeys(("name", "column", "why", "learned"), str)
    formats |= {"every split": str, "rate": "{:g}".format}
    formats |= {split: passes_text for split in of_task.thresholds if split in frame.columns}
    heads = {s: f"{s} <= {percent(limit)}" for s, limit in of_task.thresholds.items()}
    note = "rate: the tuned learning rate. time: of training, relative to rope. why: " + (
        "the verdict of pe-lab why."
        if any(of == task for of, _ in why)
        else "no run of this task was diagnosed with pe-lab why."
    )
    return Table(
        frame.with_columns(name=yours.otherwise("label")),
        formats | {"time": "{:.2f}".format},
        f"{task}: seeds with an error up to the threshold, and the median error in %",
        (note, "every split: how many seeds pass all scored splits, with the 95 % interval."),
        {"name": "entry", **heads},
    )


def passes_text(row: Mapping[str, Any]) -> str:
    """Write ``7/8 0.31``: k/n and the median error in %."""
    return f"{row['k']}/{row['n']} {percent(row['median'])}"


def tuning_table(scores: Scores, task: str, shown: Collection[str] = ()) -> Table:
    """Return the in-domain error of the tuning runs of a task at each learning rate, and the rate
    that was chosen."""
    runs = scores.rows.filter(is_shown(shown), phase=TUNING, task=task, split=IN_DOMAIN)
    runs = runs.sort("lr").with_columns(
        pl.col("error").fill_null(WORST), rate=pl.col("lr").cast(pl.String)
    )
    frame = runs.pivot(
        "rate", index=["task", "entry", "chosen"], values="error", aggregate_function="mean"
    )
    rates = runs["rate"].unique(maintain_order=True)
    formats: dict[str, Format] = {"entry": str, "chosen": "{:g}".format}
    title = f"{task}: in-domain error in % at each learning rate, and the rate that is scored"
    return Table(frame.sort("entry"), formats | dict.fromkeys(rates, percent), title)


def claims_table(tests: pl.DataFrame) -> Table:
    """Return a row for each test of each claim: that more seeds of a than of b generalise."""
    seeds = {
        f"seeds {side}": pl.format("{}/{}", f"k_{side}", f"n_{side}").replace("0/0", None)
        for side in "ab"
    }
    of_claim = pl.col("claim").replace_strict(judge_claims(tests), return_dtype=pl.String)
    formats: dict[str, Format] = dict.fromkeys(("claim", "task", "split", "a", "b"), str)
    formats |= dict.fromkeys(("of_claim", *seeds), str)
    return Table(
        tests.with_columns(**seeds, of_claim=of_claim),
        formats | dict.fromkeys(("p", "p_holm"), "{:.2g}".format),
        "Preregistered claims: a generalises in more seeds than b",
        (
            "A claim is supported if each of its tests is. p: Fisher's exact test, one-sided.",
            "p_holm: the claim's largest p, 1 while it is open, with Holm's correction over "
            f"{counted(tests['claim'].n_unique(), 'claim')}.",
        ),
        {"of_claim": "the claim is"},
    )


def describe_text(scores: Scores) -> list[str]:
    """Return a sentence on whether the suite predicts errors on text; none with too few entries."""
    places = {"long_x4": "at 4 times the trained length", "long_x8": "at 8 times"}
    said = [
        f"{rho:.2f} [{low:.2f}, {high:.2f}] {places.get(split, 'in domain')} (p = {p:.1g}, n = {n})"
        for split, n, rho, low, high, p in compare_with_text(scores).iter_rows()
    ]
    sentence = (
        "Spearman's correlation of an entry's success on the suite and its error on text is "
        f"{', '.join(said)}; 95 % intervals by bootstrap, p of a permutation test that it is "
        "negative."
    )
    return [sentence] * bool(said)


def describe_runs(scores: Scores, tasks: Sequence[str]) -> Iterator[str]:
    """Yield a line each on results with more steps, failed runs, processors, and what they took."""
    rows = scores.rows.filter(pl.col("task").is_in(tasks), pl.col("split") == IN_DOMAIN)
    for times in scores.suite.protocol.longer:
        longer = scores.success(f"steps_x{times}").filter(pl.col("task").is_in(tasks))
        seeds = pl.format("{} {}/{}", "entry", "k", "n")
        for task, texts in longer.group_by("task", maintain_order=True).agg(seeds).iter_rows():
            yield f"{task} with {times} times the steps: {', '.join(texts)}"
    failed = rows.filter(state="failed").group_by("task", "entry", maintain_order=True)
    for task, entry, n, message in failed.agg(pl.len(), pl.first("message")).iter_rows():
        yield f"failed: {entry} on {task}, {n} runs: {message}"
    yield from describe_text(scores)
    hours = rows.select(pl.sum_horizontal("train_s", "measure_s").sum()).item() / 3600
    processors = rows["processor"].fill_null("unknown").value_counts(sort=True, name="n")
    used = "; ".join(f"{name}, {n} runs" for name, n in processors.iter_rows())
    yield f"{len(rows)} runs, {hours:.1f} hours: {used}"
