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
continues where it was. force=true measures again. docs/why.md has the interventions, their
controls and the rule of the verdict.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from pe_lab.cli.run_argument import split_finished
from pe_lab.core.console import busy, console, percent
from pe_lab.core.errors import PeLabError, RunError, UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.options import Flag, parse, without_config_dir
from pe_lab.core.suggest import counted
from pe_lab.experiment.signals import get_interrupt, stop_on_signal
from pe_lab.explain.cells import Cell, Diagnosed, build_frame, group_cells
from pe_lab.explain.record import Row
from pe_lab.explain.verdict import CAUSES
from pe_lab.results.format import OutputFormat, Table, print_tables
from pe_lab.results.groups import named
from pe_lab.results.table import RunOptions, by_split, runs_of, selected
from pe_lab.suite.rows import write_parquet
from pe_lab.suite.suite import DEFAULT, load_suite
from pe_lab.suite.verdicts import diagnosis_rows

SENTENCES = 4
"""Cells of which each has a sentence; more have a row of the table."""
SHOWN = ("error", "intervention", "control")
"""The kinds of rows that are shown without ``details``."""
CAPTION = (
    "Restored: the share of the error added by the split that the intervention takes away. "
    "docs/why.md has the interventions and the rule."
)


class WhyOptions(RunOptions):
    """The keys of ``pe-lab why``; every other key selects among the runs, as in results."""

    command = "why"

    run: str = ""
    split: str | None = None
    details: Flag = False
    force: Flag = False
    format: OutputFormat = "table"
    to: Path | None = None
    suite: str = DEFAULT


def show(words: Sequence[str]) -> None:
    """Diagnose the runs and print the verdicts.

    Raises:
        UsageError: an option is wrong, or there is no such run.
        RunError: some runs could not be diagnosed; the others were.
        Interrupted: stopped by a signal; finished diagnoses are kept.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(WhyOptions, rest)
    if options.to is not None and (options.to.suffix != ".parquet" or options.to.exists()):
        raise UsageError(f"to={options.to}: give a new .parquet file")
    suite = load_suite(options.suite, None if config_dir is None else Path(config_dir))
    paths = _find_paths(options)
    left_out: list[PeLabError] = []
    diagnoses = diagnose_runs(paths, options.split, force=options.force, left_out=left_out.append)
    if not diagnoses:
        raise left_out[0]
    cells = group_cells(diagnoses)
    if options.to is not None:
        rows = diagnosis_rows(diagnoses, suite)
        write_parquet(rows, options.to)
        runs, left = rows["run_id"].n_unique(), len(paths) - rows["run_id"].n_unique()
        print(f"{options.to}: {runs} runs, {left} left out")
    elif options.format == "json":
        numbers = build_frame(diagnoses).to_dicts()
        print(json.dumps({"verdicts": [cell.facts() for cell in cells], "rows": numbers}))
    elif options.format == "csv":
        print(build_frame(diagnoses).write_csv(), end="")
    else:
        if options.format == "table" and len(cells) <= SENTENCES:
            console().print("\n".join(cell.sentence for cell in cells), soft_wrap=True)
        table = (
            table_of_cells(cells) if len(cells) > 1 else table_of_rows(cells[0], options.details)
        )
        print_tables(options.format, [table])
    if left_out:
        reasons = "; ".join(map(str, left_out))
        raise RunError(f"{len(left_out)} of {len(paths)} runs not diagnosed: {reasons}")


def diagnose_runs(
    paths: Sequence[Path],
    split: str | None = None,
    *,
    force: bool = False,
    left_out: Callable[[PeLabError], None] | None = None,
) -> list[Diagnosed]:
    """Diagnose finished runs; each is recorded at once, so that the same call goes on.

    Args:
        split: None: for each setting the one with the highest mean error over these runs.
        left_out: called with the error of a run that cannot be diagnosed; None: it is raised.
    """
    # Imported here: torch takes a second.
    from pe_lab.explain.diagnose import read_or_diagnose

    runs = runs_of(paths)
    names, worst = named(runs).labels, _worst_splits(runs)
    diagnoses: list[Diagnosed] = []
    with stop_on_signal():
        for done, row in enumerate(runs.iter_rows(named=True), 1):
            if (stop := get_interrupt()) is not None:
                raise stop
            path, setting = Path(row["path"]), row["setting"] or ""
            try:
                with busy(f"diagnosing {done} of {len(paths)}"):
                    one = read_or_diagnose(path, split or worst.get(setting), force=force)
            except PeLabError as error:
                if left_out is None:
                    raise
                left_out(error)
                continue
            label = " ".join([row["pe"], names.get(setting, "")]).strip()
            diagnoses.append(Diagnosed(path, row["task"], row["pe"], label, row["seed"], one))
    return diagnoses


def _find_paths(options: WhyOptions) -> list[Path]:
    """The finished runs that the options name or select."""
    if options.run:
        return split_finished(options.run, Path(options.runs_dir))[0]
    if not options.filters:
        raise UsageError("why needs finished runs: give run=FOLDER, or task=recall pe=rope")
    runs = selected(options)
    paths = [] if runs.is_empty() else runs.filter(pl.col("state") == "finished")["path"].to_list()
    if not paths:
        raise UsageError(f"why {' '.join(options.filters)}: no finished run in {options.runs_dir}")
    return [Path(path) for path in paths]


def _worst_splits(runs: pl.DataFrame) -> dict[str, str]:
    """Setting -> the split out of domain with the highest mean error."""
    errors = by_split(runs).filter(pl.col("split") != IN_DOMAIN)
    means = errors.group_by("setting", "split", maintain_order=True).agg(pl.mean("error"))
    highest = means.drop_nulls("error").sort("error", descending=True, maintain_order=True)
    return dict(highest.unique("setting", keep="first").select("setting", "split").iter_rows())


def table_of_rows(cell: Cell, details: bool) -> Table:
    """One setting: a row for each intervention, the mean over its seeds."""
    rows = [row for row in cell.seeds[0].diagnosis.rows if details or row.kind in SHOWN]

    def write(row: Row, field: str) -> str:
        value = cell.mean(row.name, field)
        plain_number = row.kind == "attention" or row.name.startswith("factor")
        return f"{value:.2f}" if plain_number and value is not None else percent(value)

    columns = {"value": cell.split, "in_domain": "in domain", "restored": "restored"}
    numbers = {head: [write(row, field) for row in rows] for field, head in columns.items()}
    frame = pl.DataFrame({"": [row.name for row in rows], **numbers})
    title = f"{cell.task}, {cell.pe}: error in %, mean of {counted(len(cell.seeds), 'seed')}"
    return Table(frame, title=title, notes=(CAPTION,))


def table_of_cells(cells: Sequence[Cell]) -> Table:
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
    title = "Why: error, and the share restored, in %"
    return Table(pl.DataFrame(rows), title=title, notes=(CAPTION,))
