"""``pe-lab leaderboard``: the shipped results of a suite, and yours among them.

    pe-lab leaderboard                            which encodings work on each task, and yours
    pe-lab leaderboard view=entries               every entry on every task; pe=cope,mine: these
    pe-lab leaderboard task=flipflop              a column for each split, and verdicts of why
    pe-lab leaderboard task=flipflop view=tuning  the in-domain error at each learning rate
    pe-lab leaderboard claims=true                preregistered claims; claims=FILE.yaml: yours
    pe-lab leaderboard thresholds=0.5             all thresholds halved
    pe-lab leaderboard details=true               also failed runs, machines and revisions
    pe-lab leaderboard format=csv                 a row for each task, entry and split; also json,
                                                  markdown, latex
    pe-lab leaderboard to=FILE.html               an interactive page
    pe-lab leaderboard to=FILE.parquet            all these runs as a file
    pe-lab leaderboard shipped=false              the runs of runs_dir alone

The tables include the runs of the suite in runs_dir=runs; pe-lab suite v2 pe=mine makes them.
suite=v2 is conf/suite/v2.yaml; --config-dir FOLDER adds the suites in FOLDER/suite/.
docs/method.md defines the numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import PositiveFloat

from pe_lab.core.errors import RunError, UsageError, check_known, writing
from pe_lab.core.files import replace_file
from pe_lab.core.options import CommaSeparated, Line
from pe_lab.explain.cells import Cell
from pe_lab.results.format import OutputFormat, print_tables
from pe_lab.store.run_folder import run_folders
from pe_lab.suite.claims import decide_claims, judge_claims, read_claims
from pe_lab.suite.rows import ORDER, SCHEMA, read_own, read_shipped, shipped_file, write_parquet
from pe_lab.suite.scores import Scores, score, unite
from pe_lab.suite.suite import DEFAULT, Suite, load_suite
from pe_lab.suite.tables import (
    claims_table,
    describe_best,
    describe_runs,
    entries_table,
    first_table,
    task_table,
    tuning_table,
)
from pe_lab.suite.verdicts import shipped_diagnoses, verdicts_of, with_verdicts

FILES = (".html", ".parquet")


def show(
    line: Line,
    *,
    suite: str = DEFAULT,
    task: CommaSeparated[str] | None = None,
    pe: CommaSeparated[str] | None = None,
    view: Literal["first", "entries", "tuning"] = "first",
    claims: str = "",
    details: bool = False,
    runs_dir: Path = Path("runs"),
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
    if to and not (to.suffix in FILES and to.parent.is_dir()):
        raise UsageError(f"to={to}: give FILE.html or FILE.parquet in a folder")
    ours = read_shipped(of_yaml) if shipped else pl.DataFrame(schema=SCHEMA)
    own = read_own(of_yaml, runs_dir, line.config_dir)
    if claims not in ("", "false"):
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
    notes = list(describe_runs(scores, tasks))
    if to is None:
        shown = "task" if task and view == "first" else view
        print_scores(scores, tasks, why, notes if details else [], shown, pe or [], format)
    elif to.suffix == ".parquet":
        write_parquet(unite(ours, own).select(*SCHEMA).sort(ORDER), to)
        print(f"{to}: {scores.rows['run_id'].n_unique()} runs")
    else:
        # Imported here: the charts take a second.
        from pe_lab.report.leaderboard import leaderboard_page

        with writing(to, "another to="):
            page = leaderboard_page(scores, tasks, why, notes, str(line))
            replace_file(to, page.encode())
        print(f"wrote {to}")


def print_scores(
    scores: Scores,
    tasks: Sequence[str],
    why: Mapping[tuple[str, str], Cell],
    notes: Sequence[str],
    view: str,
    pe: Sequence[str],
    format: OutputFormat,
) -> None:
    """Print the tables of a view of these tasks.

    Args:
        why: verdicts by task and entry.
        pe: these entries; empty: all.
    """
    if view == "tuning":
        tables = [tuning_table(scores, task, pe) for task in tasks]
    elif view == "task":
        tables = [task_table(scores, task, why, pe) for task in tasks]
    elif view == "entries" or pe:
        tables = [entries_table(scores, tasks, pe)]
    else:
        tables = [first_table(scores, tasks)]
        more = "More: view=entries, task=flipflop, claims=true, details=true."
        notes = [describe_best(scores, tasks), *notes, more]
    cells = with_verdicts(scores.cells.filter(pl.col("task").is_in(tasks)), why)
    split = {entry: scores.suite.split(entry) for entry in cells["entry"].unique()}
    chosen = [entry for entry, (base, _) in split.items() if not pe or {entry, base} & {*pe}]
    columns = {entry: column for entry, (_, column) in split.items()}
    column = pl.col("entry").replace_strict(columns, return_dtype=pl.String)
    rows = cells.filter(pl.col("entry").is_in(chosen)).with_columns(column=column)
    facts = {"suite": scores.suite.version, "thresholds": scores.suite.times}
    print_tables(format, tables, rows, notes, facts)


def print_claims(
    suite: Suite, ours: pl.DataFrame, own: pl.DataFrame, file: str, format: OutputFormat
) -> None:
    """Print the tests of the claims in a file; ``true``: in that of the suite."""
    path = shipped_file(f"{suite.name}.claims.yaml") if file == "true" else Path(file)
    if not path.exists():
        raise UsageError(f"claims={file}: there is no {path}")
    tests = decide_claims(read_claims(path, suite), suite, ours, own)
    exploratory = tests.filter(pl.col("exploratory").is_not_null()).unique("claim")
    notes = [
        f"{claim} is exploratory: {why}"
        for claim, why in exploratory.select("claim", "exploratory").iter_rows()
    ]
    verdicts = {"verdicts": judge_claims(tests)}
    print_tables(format, [claims_table(tests)], tests, notes, verdicts)
