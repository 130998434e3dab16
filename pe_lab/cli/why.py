"""``pe-lab why``: the cause of a failure at length, found by intervening on attention.

    pe-lab why run=FOLDER                     a finished run, on the split with the highest error
    pe-lab why 'run=runs/recall/rope/*'       several: folders or parts of a path with * and ?
    pe-lab why task=recall pe=rope,alibi      all finished runs of these below runs_dir=runs
    pe-lab why run=.. split=long_x4           this split instead
    pe-lab why run=.. details=true            parts of the encoding, layers, and attention itself
    pe-lab why run=.. format=csv              table, csv, json, markdown or latex
    pe-lab why run=.. to=FILE.parquet         every number, as pe-lab leaderboard reads it; suite=v2
    pe-lab why --config-dir FOLDER run=..     runs of your own encoding

Each run takes some seconds, once: why.jsonl in its folder keeps the numbers, so a stopped command
continues where it was. force=true measures again. docs/why.md has the interventions, their
controls and the rule of the verdict.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import polars as pl

from pe_lab.cli.eval import Progress
from pe_lab.cli.run_argument import split_finished
from pe_lab.core.console import console, percent
from pe_lab.core.errors import PeLabError, RunError, UsageError
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.core.options import CommaSeparated, Flag, Options, parse, without_config_dir
from pe_lab.experiment.signals import stop_on_signal, stopping
from pe_lab.explain.cells import Cell, Diagnosed, cells_of, frame_of
from pe_lab.explain.record import Row
from pe_lab.explain.verdict import CAUSES
from pe_lab.results.format import OutputFormat, Table, print_tables
from pe_lab.results.labels import labels
from pe_lab.results.table import read_runs, runs_of, splits_of
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


class WhyOptions(Options):
    """The keys of ``pe-lab why``."""

    command = "why"

    run: str = ""
    task: CommaSeparated[str] | None = None
    pe: CommaSeparated[str] | None = None
    split: str | None = None
    details: Flag = False
    force: Flag = False
    format: OutputFormat = "table"
    to: Path | None = None
    suite: str = DEFAULT
    runs_dir: Path = Path("runs")


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
    paths = _paths(options)
    left_out: list[PeLabError] = []
    found = diagnosed(
        paths, options.split, force=options.force, config_dir=config_dir, left_out=left_out.append
    )
    if not found:
        raise left_out[0]
    cells = cells_of(found)
    if options.to is not None:
        rows = diagnosis_rows(found, suite)
        write_parquet(rows, options.to)
        runs, left = rows["run_id"].n_unique(), len(paths) - rows["run_id"].n_unique()
        print(f"{options.to}: {runs} runs, {left} left out")
    elif options.format == "json":
        numbers = frame_of(found).to_dicts()
        print(json.dumps({"verdicts": [cell.facts() for cell in cells], "rows": numbers}))
    elif options.format == "csv":
        print(frame_of(found).write_csv(), end="")
    else:
        if options.format == "table" and len(cells) <= SENTENCES:
            console().print("\n".join(cell.sentence for cell in cells), soft_wrap=True)
        table = (
            table_of_cells(cells) if len(cells) > 1 else table_of_rows(cells[0], options.details)
        )
        print_tables(options.format, [table])
    if left_out:
        runs = f"{len(left_out)} of {len(paths)} runs not diagnosed"
        raise RunError(f"{runs}: {'; '.join(map(str, left_out))}")


def diagnosed(
    paths: Sequence[Path],
    split: str | None = None,
    *,
    force: bool = False,
    config_dir: str | None = None,
    left_out: Callable[[PeLabError], None] | None = None,
) -> list[Diagnosed]:
    """Diagnose finished runs; each is recorded at once, so that the same call goes on.

    Args:
        split: None: for each setting the one with the highest mean error over these runs.
        left_out: called with the error of a run that cannot be diagnosed; None: it is raised.
    """
    # Imported here: torch takes a second.
    from pe_lab.explain.diagnose import recorded

    runs = runs_of(paths)
    names, worst, found = labels(runs), _worst(runs), []
    progress = Progress()
    with stop_on_signal(), closing(progress):
        for done, row in enumerate(runs.iter_rows(named=True)):
            progress.show(done, len(paths))
            if (stop := stopping()) is not None:
                raise stop
            path, setting = Path(row["path"]), row["setting"] or ""
            try:
                one = recorded(path, split or worst.get(setting), force=force)
            except PeLabError as error:
                if left_out is None:
                    raise
                left_out(error)
                continue
            label = " ".join([row["pe"], names.get(setting, "")]).strip()
            found.append(Diagnosed(path, row["task"], row["pe"], label, row["seed"], one))
    return found


def _paths(options: WhyOptions) -> list[Path]:
    """The finished runs that are asked for."""
    if bool(options.run) == bool(options.task or options.pe):
        raise UsageError(
            "why needs finished runs: give run=FOLDER, or task=.. and pe=.. for those below "
            "runs_dir, not both"
        )
    if options.run:
        return split_finished(options.run, options.runs_dir)[0]
    keys = {"task": options.task, "pe": options.pe}
    equal = {key: ",".join(values) for key, values in keys.items() if values}
    runs = read_runs(options.runs_dir, **equal)
    found = [] if runs.is_empty() else runs.filter(pl.col("state") == "finished")["path"].to_list()
    if not found:
        asked = " ".join(f"{key}={value}" for key, value in equal.items())
        raise UsageError(
            f"{asked} has no finished run below runs_dir={options.runs_dir}: "
            "train them first, pe-lab runs lists what is there"
        )
    return [Path(path) for path in found]


def _worst(runs: pl.DataFrame) -> dict[str, str]:
    """Setting -> the split out of domain with the highest mean error."""
    of = {split: metric_name(split, "error") for split in splits_of(runs) if split != IN_DOMAIN}
    of = {split: column for split, column in of.items() if column in runs.columns}
    means = runs.group_by("setting").agg(pl.col(of.values()).cast(pl.Float64).mean())
    found = {}
    for row in means.iter_rows(named=True):
        errors = {split: row[column] for split, column in of.items() if row[column] is not None}
        if errors:
            found[row["setting"]] = max(errors, key=lambda split: errors[split])
    return found


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
    title = f"{cell.task}, {cell.pe}: error in %, mean of {len(cell.seeds)} seeds"
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
