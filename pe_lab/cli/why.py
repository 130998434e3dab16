"""``pe-lab why``: the cause of a failure at length, found by intervening on attention.

    pe-lab why run=FOLDER                     a finished run, on the split with the highest error
    pe-lab why 'run=runs/recall/rope/*'       several: folders or parts of a path with * and ?
    pe-lab why task=recall pe=rope,alibi      all finished runs that filters select, as in results
    pe-lab why run=.. split=long_x4           this split instead
    pe-lab why run=.. details=true            layers, and attention itself
    pe-lab why run=.. format=csv              table, csv, json, markdown or latex
    pe-lab why run=.. to=FILE.parquet         every number, as pe-lab leaderboard reads it; suite=v2
    pe-lab why --config-dir FOLDER run=..     runs of your own encoding

Each run takes some seconds, once: why.jsonl in its folder keeps the numbers, so a stopped command
continues where it was. force=true measures again, and also a run that has not learned or that
generalises. docs/why.md has the interventions, their
controls and the rule of the verdict.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pe_lab.cli.arguments import NewParquet, refuse_left_out, split_finished
from pe_lab.core.console import busy, console, percent
from pe_lab.core.errors import PeLabError, RunError, UsageError, counted
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.options import Line
from pe_lab.experiment.signals import raise_interrupt, stop_on_signal
from pe_lab.explain.diagnose import read_or_diagnose
from pe_lab.explain.record import Row
from pe_lab.explain.verdict import CAUSES, Diagnosed, DiagnosedCell, build_frame, group_cells
from pe_lab.results.format import OutputFormat, Table, print_tables
from pe_lab.results.groups import named
from pe_lab.results.table import (
    by_split,
    runs_of,
    selected,
    unfinished_notes,
    write_parquet,
)
from pe_lab.suite.suite import DEFAULT, load_suite
from pe_lab.suite.verdicts import diagnosis_rows

SENTENCES = 4
"""Cells of which each has a sentence; more have a row of the table."""
LONG = 20
"""Rows of a table that pushes what is above it off a screen."""
SHOWN = ("error", "intervention", "placebo", "control")
"""The kinds of rows that are shown without ``details``."""
CAPTION = (
    "Restored: the share of the error added by the split that the intervention takes away. "
    "docs/why.md has the interventions and the rule."
)


def show(
    line: Line,
    *,
    run: str = "",
    runs_dir: Path = Path("runs"),
    where: str | None = None,
    split: str | None = None,
    details: bool = False,
    force: bool = False,
    format: OutputFormat = "table",
    to: NewParquet | None = None,
    suite: str = DEFAULT,
    **filters: str,
) -> None:
    """Diagnose the runs and print the verdicts.

    Raises:
        UsageError: an option is wrong, or there is no such run.
        RunError: some runs could not be diagnosed; the others were.
        Interrupted: stopped by a signal; finished diagnoses are kept.
    """
    of_suite = load_suite(suite, line.config_dir)
    if run and line.filters:
        raise UsageError(f"why run={run} names the runs already: leave {line.filters[0]} out")
    if run:
        paths, others = split_finished(run, runs_dir)
        runs = runs_of(others)
    elif line.filters:
        runs = selected(line, runs_dir, where, filters)
        paths = list(map(Path, runs.filter(pl.col("state") == "finished")["path"]))
    else:
        raise UsageError("why needs finished runs: give run=FOLDER, or task=recall pe=rope")
    if not paths:
        raise UsageError(f"why {' '.join(line.filters)}: no finished run in {runs_dir}")
    diagnoses, errors = diagnose_runs(paths, split, force=force)
    if not diagnoses:
        raise errors[0]
    if to is not None:
        rows = diagnosis_rows(diagnoses, of_suite)
        write_parquet(rows, to)
        written = rows["run_id"].n_unique()
        print(f"{to}: {written} runs, {len(paths) - written} left out")
    else:
        print_verdicts(diagnoses, details, format, unfinished_notes(runs))
    refuse_left_out(errors, len(paths), "diagnosed")


def diagnose_runs(
    paths: Sequence[Path], split: str | None = None, *, force: bool = False
) -> tuple[list[Diagnosed], list[PeLabError]]:
    """Diagnose finished runs, and return the errors of those that cannot be.

    Each is recorded at once, so that the same call goes on.

    Args:
        split: None: for each setting the one with the highest mean error over these runs.
    """
    runs = runs_of(paths)
    names, worst = named(runs).labels, _worst_splits(runs)
    diagnoses, errors = list[Diagnosed](), list[PeLabError]()
    with stop_on_signal():
        for done, row in enumerate(runs.iter_rows(named=True), 1):
            raise_interrupt()
            path, setting = Path(row["path"]), row["setting"] or ""
            try:
                with busy(f"diagnosing {done} of {len(paths)}"):
                    one = read_or_diagnose(path, split or worst.get(setting), force=force)
                if row["state"] == "broken":  # a copy of another run
                    raise RunError(row["message"])
            except PeLabError as error:
                errors.append(error)
                continue
            diagnoses.append(
                Diagnosed(
                    path,
                    row["task"],
                    " ".join([row["pe"], names.get(setting, "")]).strip(),
                    row["seed"],
                    one,
                )
            )
    return diagnoses, errors


def print_verdicts(
    diagnoses: Sequence[Diagnosed], details: bool, format: OutputFormat, notes: Sequence[str]
) -> None:
    """Print a sentence for each of few settings, the table, and below a long one the same again;
    then the notes."""
    cells = group_cells(diagnoses)
    said = cells if format == "table" and len(cells) <= SENTENCES else []
    for cell in said:
        console().print(cell.sentence, soft_wrap=True)
    table = table_of_cells(cells) if len(cells) > 1 else table_of_rows(cells[0], details)
    again = [cell.sentence for cell in said if len(table.frame) > LONG]
    print_tables(
        format,
        [table],
        build_frame(diagnoses),
        [*again, *notes],
        {"verdicts": [cell.facts() for cell in cells]},
    )


def _worst_splits(runs: pl.DataFrame) -> dict[str, str]:
    """Setting -> the split out of domain with the highest mean error."""
    errors = by_split(runs).filter(pl.col("split") != IN_DOMAIN)
    means = errors.group_by("setting", "split", maintain_order=True).agg(pl.mean("error"))
    highest = means.drop_nulls("error").sort("error", descending=True, maintain_order=True)
    return dict(highest.unique("setting", keep="first").select("setting", "split").iter_rows())


def table_of_rows(cell: DiagnosedCell, details: bool) -> Table:
    """One setting: a row for each intervention, the mean over its seeds."""
    # A seed that generalises, or has not learned, has its error alone.
    longest = max((one.diagnosis.rows for one in cell.seeds), key=len)
    rows = [row for row in longest if details or row.kind in SHOWN]

    def write(row: Row, field: str) -> str:
        value = cell.mean(row.name, field)
        plain_number = row.kind == "attention" or row.name.startswith("factor")
        return f"{value:.2f}" if plain_number and value is not None else percent(value)

    columns = {"value": cell.split, "in_domain": "in domain", "restored": "restored"}
    numbers = {head: [write(row, field) for row in rows] for field, head in columns.items()}
    return Table(
        pl.DataFrame({"": [row.name for row in rows], **numbers}),
        title=f"{cell.task}, {cell.pe}: error in %, mean of {counted(len(cell.seeds), 'seed')}",
        notes=(CAPTION,),
    )


def table_of_cells(cells: Sequence[DiagnosedCell]) -> Table:
    """Several settings: a row for each, with its verdict and what each intervention restores."""
    rows = [
        {
            "task": cell.task,
            "encoding": cell.pe,
            "split": cell.split,
            "verdict": cell.verdict.cause,
            "seeds": f"{cell.verdict.k}/{cell.verdict.n}",
            "error": percent(cell.mean("plain", "value")),
            "in domain": percent(cell.mean("plain", "in_domain")),
            **{n: percent(cell.verdict.shares.get(n)) for n in (*CAUSES.values(), "oracle")},
        }
        for cell in cells
    ]
    return Table(
        pl.DataFrame(rows), title="Why: error, and the share restored, in %", notes=(CAPTION,)
    )
