"""``pe-lab leaderboard``: the shipped results of a suite, and yours among them.

    pe-lab leaderboard                            which encoding for which need, and yours
    pe-lab leaderboard view=entries               every entry on every task; pe=cope,mine: these
    pe-lab leaderboard view=columns               where the convolution helps and harms, tested
    pe-lab leaderboard task=flipflop              a column for each split, and verdicts of why
    pe-lab leaderboard task=flipflop view=tuning  the in-domain error at each learning rate
    pe-lab leaderboard claims=true                preregistered claims; claims=FILE.yaml: yours
    pe-lab leaderboard thresholds=0.5             all thresholds halved
    pe-lab leaderboard details=true               twice the steps, text, failed runs, processors
    pe-lab leaderboard format=csv                 a row for each task, entry and split, or those of
                                                  view=columns, tuning; also json, markdown, latex
    pe-lab leaderboard to=FILE.html               an interactive page
    pe-lab leaderboard figure=lengths to=FILE.pdf the errors at the greatest length as a picture;
                                                  also svg and png
    pe-lab leaderboard to=FILE.parquet            all these runs as a file
    pe-lab leaderboard shipped=false              the runs of runs_dir alone

The tables include the runs of the suite in runs_dir=runs; pe-lab suite v2_1 pe=mine makes them.
suite=v2_1 is conf/suite/v2_1.yaml; --config-dir FOLDER adds the suites in FOLDER/suite/.
docs/method.md defines the numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import polars as pl
from pydantic import PositiveFloat

from pe_lab.core.errors import RunError, UsageError, check_known, counted
from pe_lab.core.files import write_output
from pe_lab.core.metrics import wilson
from pe_lab.core.options import CommaSeparated, Line
from pe_lab.explain.verdict import DiagnosedCell
from pe_lab.results.format import OutputFormat, Table, print_tables
from pe_lab.results.statistics import LEVEL
from pe_lab.results.table import write_parquet
from pe_lab.store.run_folder import run_folders
from pe_lab.suite.claims import decide_claims, judge_claims, read_claims
from pe_lab.suite.rows import (
    ORDER,
    SCHEMA,
    read_own,
    read_shipped,
    shipped_file,
)
from pe_lab.suite.scores import BASELINE, Scores, score, unite
from pe_lab.suite.suite import DEFAULT, Suite, load_suite
from pe_lab.suite.tables import (
    HALF,
    NOT_LEARNED,
    claims_table,
    columns_table,
    compare_columns,
    count_seeds,
    describe_runs,
    entries_tables,
    is_shown,
    select_telling,
    task_table,
    tuning_table,
)
from pe_lab.suite.verdicts import shipped_diagnoses, verdicts_of, with_verdicts

FILES, PICTURES = ("html", "parquet"), ("pdf", "png", "svg")
# The options that each of these outputs ignores.
OF_ALL = {
    "claims": ("to", "task", "pe", "view", "thresholds"),
    "figure": ("task", "pe", "view"),
    "parquet": ("task", "pe", "view", "thresholds"),
    "html": ("pe", "view"),
}
# Characters of a line of the first screen.
WIDTH = 100
# The most entries that a cell of the first table names.
NAMED = 3
# What a task needs, in the words of the first table.
NEEDS = {
    "counting": "count (counting)",
    "flipflop": "keep a bit (flipflop)",
    "recall": "find a key's value (recall)",
    "copy_unique": "copy all (copy_unique)",
    "termination": "end a copy (termination)",
    "selective_copy": "copy some (selective_copy)",
    "brackets": "close brackets (brackets)",
    "parity": "track parity (parity)",
    "text": "predict text (text)",
}


def show(
    line: Line,
    *,
    suite: str = DEFAULT,
    task: CommaSeparated[str] | None = None,
    pe: CommaSeparated[str] | None = None,
    view: Literal["first", "entries", "columns", "tuning"] = "first",
    claims: str = "",
    details: bool = False,
    runs_dir: Path = Path("runs"),
    figure: Literal["lengths"] | None = None,
    shipped: bool = True,
    thresholds: PositiveFloat = 1.0,
    format: OutputFormat = "table",
    to: Path | None = None,
) -> None:
    """Print the tables, or write the file.

    Raises:
        UsageError: an option is wrong, or there is no such suite, task, entry or file of claims.
    """
    of_yaml = load_suite(suite, line.config_dir)
    check_known("task={}", task, of_yaml.tasks)
    refuse_file(to, figure)
    by_claim = claims not in ("", "false")
    kind = "claims" if by_claim else "figure" if figure else to.suffix[1:] if to else ""
    given: dict[str, Any] = {"to": to, "task": task, "pe": pe, "view": view != "first"}
    given["thresholds"] = thresholds != 1
    if unused := [name for name in OF_ALL.get(kind, ()) if given[name]]:
        raise UsageError(f"leave {', '.join(unused)} out: {kind} has no use for it")
    ours = read_shipped(of_yaml) if shipped else pl.DataFrame(schema=SCHEMA)
    own = read_own(of_yaml, runs_dir, line.config_dir)
    if by_claim:
        print_claims(of_yaml, ours, own, claims, format)
        return
    again = read_shipped(of_yaml, ".again") if shipped else None
    scores = score(of_yaml.with_thresholds(thresholds), ours, own, again)
    entries = scores.rows["entry"].unique()
    bases = {scores.suite.split(entry)[0].partition(" ")[0] for entry in entries}
    check_known("pe={}", pe, {*bases, *entries})
    tasks = [one for one in scores.tasks if one in (task or scores.tasks)]
    if not tasks:
        raise RunError("no run of these tasks is scored: pe-lab suite trains them")
    folders = {"-".join(one.path.parts[-3:]): one for one in run_folders(runs_dir)}
    why = verdicts_of(scores, shipped_diagnoses(of_yaml) if shipped else [], folders)
    notes = [*describe_runs(scores, tasks)] if details or to else []
    if to is None:
        shown = "task" if task and view == "first" else view
        print_scores(scores, tasks, why, notes, shown, pe or [], format)
    elif to.suffix == ".parquet":
        write_parquet(unite(ours, own).select(*SCHEMA).sort(ORDER), to)
        print(f"{to}: {scores.rows['run_id'].n_unique()} runs")
    else:
        write_page(to, scores, tasks, why, notes, str(line))


def refuse_file(to: Path | None, figure: str | None) -> None:
    """UsageError for a file that cannot be written, or a picture without one."""
    endings = PICTURES if figure else FILES
    fits = to is not None and to.suffix[1:] in endings and to.parent.is_dir()
    if (figure or to) and not (to and fits and (to.suffix != ".parquet" or not to.exists())):
        raise UsageError(f"to={to or ''}: give a new FILE.{' or FILE.'.join(endings)} in a folder")


def write_page(to: Path, scores: Scores, *of_page: Any) -> None:
    """Write the picture of lengths, or the page with what ``leaderboard_page`` takes; say so."""
    # Imported here: the charts take a second.
    from pe_lab.report.leaderboard import draw_lengths, leaderboard_page

    if to.suffix == ".html":
        write_output(to, leaderboard_page(scores, *of_page).encode())
    else:
        write_output(to, draw_lengths(scores, to.suffix[1:]))
    print(f"written to {to}")


def print_scores(
    scores: Scores,
    tasks: Sequence[str],
    why: Mapping[tuple[str, str], DiagnosedCell],
    notes: Sequence[str],
    view: str,
    pe: Sequence[str],
    format: OutputFormat,
) -> None:
    """Print the tables of a view of these tasks.

    Args:
        why: verdicts by task and entry.
        pe: these entries; empty: all.

    Raises:
        RunError: none of these entries has a scored run.
    """
    names = count_seeds(scores).select("entry", "column").unique("entry")
    cells = with_verdicts(scores.cells.filter(pl.col("task").is_in(tasks)), why)
    rows = cells.join(names, on="entry", maintain_order="left").filter(is_shown(pe))
    if rows.is_empty() and view != "tuning":
        raise RunError(f"no run of {', '.join(pe)} on {', '.join(tasks)} is scored")
    if view == "tuning":
        tables = [tuning_table(scores, task, pe) for task in tasks]
    elif view == "task":
        tables = [task_table(scores, task, why, pe) for task in tasks]
    elif view == "columns":
        tables = [columns_table(scores, tasks, pe)]
    elif view == "entries" or pe:
        tables = entries_tables(scores, tasks, pe)
    else:
        tables, notes = [first_table(scores, tasks)], [*describe_first(scores, tasks), *notes]
        notes = [fill(note, WIDTH) for note in notes]
    # These two views export their own tables.
    exported = None if view in ("tuning", "columns") else rows
    facts = {"suite": scores.suite.version, "thresholds": scores.suite.times}
    print_tables(format, tables, exported, notes, facts)


def first_table(scores: Scores, tasks: Sequence[str]) -> Table:
    """Return which entries generalise, a row for each need: alone, and in the second column."""
    suite, counts = scores.suite, count_seeds(scores)
    columns = [*suite.columns][:2]
    rows = [
        {"need": NEEDS.get(task, task)}
        | {
            column: _name_those_at_length(counts.filter(task=task, column=column))
            for column in columns
        }
        for task in select_telling(tasks)
    ]
    title = f"Which encodings generalise to longer sequences? Suite {suite.version}"
    heads = {name: f"with {name} ({' '.join(suite.columns[name].words)})" for name in columns[1:]}
    return Table(
        pl.DataFrame(rows),
        {},
        title,
        ("Named: clearly more than half of the seeds (7 of 8 suffice) pass every OOD split.",),
        heads,
    )


def _name_those_at_length(entries: pl.DataFrame) -> str:
    if entries.is_empty():
        return "not run"
    works = entries.filter("works").sort("low", descending=True, maintain_order=True)["label"]
    n, more = max(entries["n"].to_list()), len(works) - NAMED
    learn = f"{entries.filter(pl.col('state') != NOT_LEARNED).height} learn it"
    none = f"none of {len(entries)}, {learn}" if wilson(n, n)[0] > HALF else f"too few seeds: {n}"
    return ", ".join(works[:NAMED]) + (f" and {more} more" if more > 0 else "") or none


def describe_pairs(scores: Scores) -> Iterator[str]:
    """Yield what the second column changes, as the exact test shows after Holm's correction."""
    pairs, other = compare_columns(scores), [*scores.suite.columns][1]
    more, learned = pl.col("k_other") > pl.col("k"), pl.col("state") != NOT_LEARNED
    for words, which in {
        f"More seeds generalise with {other}": more & learned,
        f"Only with {other} is the task learned": more & ~learned,
        f"Fewer seeds generalise with {other}": ~more,
    }.items():
        sure = pairs.filter(which, pl.col("p_holm") <= LEVEL).group_by("task", maintain_order=True)
        said = "; ".join(
            f"{task}: {', '.join(labels)}" for task, labels in sure.agg("label").iter_rows()
        )
        yield f"{words}: {said or 'none'}."
    yield f"(Fisher's exact test of the seeds, with Holm's correction over {len(pairs)} pairs)"


def describe_first(scores: Scores, tasks: Sequence[str]) -> Iterator[str]:
    """Yield the lines below the first table: what the second column changes, on which tasks rope
    and the user's own entries generalise, and what to type next."""
    if len(scores.suite.columns) > 1:
        yield from describe_pairs(scores)
    counts = count_seeds(scores).filter(pl.col("task").is_in(select_telling(tasks)))
    place = pl.format("{} ({})", "task", "column").filter("works")
    yours = (pl.col("n") == pl.col("yours")).all()
    own = counts.group_by("base", maintain_order=True).agg(
        place, pl.col("task").n_unique().alias("tasks"), yours.alias("own")
    )
    for base, places, n, is_own in own.filter(
        pl.col("own") | (pl.col("base") == BASELINE)
    ).iter_rows():
        where = f"run on {counted(n, 'task')}, generalises on {', '.join(places) or 'none of them'}"
        yield f"{base}{' (yours)' * is_own}, {where}."
    claims = " claims=true," * shipped_file(f"{scores.suite.name}.claims.yaml").exists()
    yield f"More: view=entries, view=columns, task=flipflop,{claims} details=true."


def print_claims(
    suite: Suite, ours: pl.DataFrame, own: pl.DataFrame, file: str, format: OutputFormat
) -> None:
    """Print the tests of the claims in a file; ``true``: in that of the suite."""
    path = shipped_file(f"{suite.name}.claims.yaml") if file == "true" else Path(file)
    if not path.exists():
        raise UsageError(f"claims={file}: there is no {path.name}; claims=FILE.yaml reads yours")
    read = read_claims(path, suite)
    tests = decide_claims(read, suite, ours, own)
    verdicts = judge_claims(tests)
    exploratory = tests.filter(pl.col("exploratory").is_not_null()).select("claim", "exploratory")
    notes = [
        f"{claim} is exploratory: {why}"
        for claim, why in exploratory.unique(maintain_order=True).iter_rows()
    ]
    for one in dict.fromkeys(verdicts.values()):
        names = [name for name, verdict in verdicts.items() if verdict == one]
        notes.append(f"{one}, {len(names)} of {len(verdicts)}: {', '.join(names)}")
    if read.words:
        notes.append(f"Keys of {path.name} that no test here reads: {', '.join(read.words)}")
    print_tables(format, [claims_table(tests)], tests, notes, {"verdicts": verdicts})
