"""``pe-lab why``: the cause of a failure at length, found by intervening on attention.

    pe-lab why run=FOLDER                     a finished run, on the split with the highest error
    pe-lab why 'run=runs/recall/rope/*'       several: folders or parts of a path with * and ?
    pe-lab why task=recall pe=rope,alibi      all finished runs of these below runs_dir=runs
    pe-lab why run=.. split=long_x4           this split instead
    pe-lab why run=.. details=true            parts of the encoding, layers, and attention itself
    pe-lab why run=.. format=csv              table, csv, json, markdown or latex
    pe-lab why run=.. out=FILE.png            a picture: png, svg or pdf
    pe-lab why run=.. out=FILE.parquet        every number, as pe-lab leaderboard reads it; suite=v2
    pe-lab why --config-dir FOLDER run=..     runs of your own encoding

Each run takes some seconds, once: why.jsonl in its folder keeps the numbers, so a stopped command
continues where it was. force=true measures again. docs/why.md has the interventions, their
controls and the rule of the verdict.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import polars as pl

from pe_lab.cli.eval import Progress
from pe_lab.cli.run_argument import finished_runs, named
from pe_lab.core.config_dir import trust
from pe_lab.core.console import percent
from pe_lab.core.errors import PeLabError, RunError, UsageError, writing
from pe_lab.core.files import write_new_file
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.core.options import CommaSeparated, Flag, Options, parse, without_config_dir
from pe_lab.core.output import counted
from pe_lab.core.signals import StopOnSignal, stopping
from pe_lab.explain.cells import Cell, Diagnosed, cells_of, frame_of
from pe_lab.explain.record import Diagnosis, Row
from pe_lab.explain.verdict import CAUSES, verdict
from pe_lab.results import verdicts
from pe_lab.results.frame import read_runs, runs_of, splits_of
from pe_lab.results.labels import labels
from pe_lab.results.presentation.formats import Cell as Text
from pe_lab.results.presentation.formats import Format, Table, print_tables
from pe_lab.results.suite import DEFAULT, Suite, load_suite
from pe_lab.store.run_folder import RunFolder

PICTURES, PARQUET = (".png", ".svg", ".pdf"), ".parquet"
SENTENCES = 4
"""Cells of which each has a sentence; more have a row of the table."""
FIELDS = ("value", "in_domain", "restored")
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
    format: Format = "table"
    out: Path | None = None
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
    _check_out(options)
    suite = load_suite(options.suite, None if config_dir is None else Path(config_dir))
    paths = _paths(options)
    left_out: list[PeLabError] = []
    found = diagnosed(
        paths, options.split, force=options.force, config_dir=config_dir, left_out=left_out.append
    )
    if not found:
        raise left_out[0]
    cells = cells_of(found)
    first = "\n".join(cell.sentence for cell in cells) if len(cells) <= SENTENCES else ""
    table = _of_cells(cells) if len(cells) > 1 else _of_cell(cells[0], options.details)
    facts = {"verdicts": [cell.facts() for cell in cells]}
    notes = [] if options.out is None else _write(options.out, found, cells, suite)
    print_tables(options.format, [table], frame_of(found), None, notes, facts, first)
    if left_out:
        runs = f"{len(left_out)} of {len(paths)} runs not diagnosed"
        raise RunError(f"{runs}: {'; '.join(map(str, left_out))}")


def _check_out(options: WhyOptions) -> None:
    """UsageError if ``out`` is no such kind of file, or is there."""
    out = options.out
    if "suite" in options.model_fields_set and (out is None or out.suffix.lower() != PARQUET):
        raise UsageError("suite= has no effect without out=FILE.parquet: leave it out")
    if out is None:
        return
    if out.suffix.lower() not in (*PICTURES, PARQUET):
        raise UsageError(f"out={out} is not allowed: give a .png, .svg, .pdf or .parquet file")
    if not out.parent.is_dir():
        raise UsageError(f"out={out}: {out.parent} is not a folder: make it, or name another")
    if out.exists():
        raise UsageError(f"out={out} is there already: give another name")


def _write(out: Path, found: Sequence[Diagnosed], cells: Sequence[Cell], suite: Suite) -> list[str]:
    """Write the picture or the numbers; returns what to say of them."""
    if out.suffix.lower() == PARQUET:
        rows, left = verdicts.shippable(found, suite)
        runs = counted(rows["run_id"].n_unique(), "run")
        notes = [f"{out}: {runs}, SHA-256 {verdicts.write(rows, out)}.."]
        if left:
            notes.append(
                f"{counted(len(left), 'run')} left out, made for tuning or otherwise than suite "
                f"{suite.name} scores: {named(left)}"
            )
        return notes
    from pe_lab.report.html import drawn
    from pe_lab.report.why import picture

    image = drawn(picture(cells), out.suffix[1:].lower())
    with writing(out):
        write_new_file(out, image)
    return []


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
    from pe_lab.experiment.tracking import track_later
    from pe_lab.explain.diagnose import recorded

    trust(config_dir)
    runs = runs_of(paths)
    names, worst, found = labels(runs), _worst(runs), []
    progress = Progress()
    with StopOnSignal(), closing(progress):
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
            track_later(RunFolder(path), _tracked(one))
            label = " ".join([row["pe"], names.get(setting, "")]).strip()
            found.append(Diagnosed(path, row["task"], row["pe"], label, row["seed"], one))
    return found


def _tracked(one: Diagnosis) -> dict[str, float | str]:
    """What the run's tracker shows: the verdict of this seed, and the restored shares."""
    begin = f"why/{one.split}"
    shares = {
        f"{begin}/{row.name.replace(' ', '_')}": row.restored
        for row in one.rows
        if row.kind == "intervention" and row.restored is not None
    }
    return {f"{begin}/verdict": verdict([one]).cause, **shares}


def _paths(options: WhyOptions) -> list[Path]:
    """The finished runs that are asked for."""
    if bool(options.run) == bool(options.task or options.pe):
        raise UsageError(
            "why needs finished runs: give run=FOLDER, or task=.. and pe=.. for those below "
            "runs_dir, not both"
        )
    if options.run:
        return finished_runs(options.run, options.runs_dir)[0]
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


def _of_cell(cell: Cell, details: bool) -> Table:
    rows = [row for row in cell.seeds[0].diagnosis.rows if details or row.kind in SHOWN]
    shown = [
        [Text(row.name), *(Text(_number(cell, row, field)) for field in FIELDS)] for row in rows
    ]
    columns = ["", cell.split, "in domain", "restored"]
    return Table(f"{cell.task}, {cell.pe}: error in %, mean of {len(cell.seeds)} seeds", columns, 1,
                 shown, CAPTION)  # fmt: skip


def _number(cell: Cell, row: Row, field: str) -> str:
    value = cell.mean(row.name, field)
    plain_number = row.kind == "attention" or row.name.startswith("factor")
    return f"{value:.2f}" if plain_number and value is not None else percent(value)


def _of_cells(cells: Sequence[Cell]) -> Table:
    names = [*CAUSES.values(), "oracle"]
    rows = []
    for cell in cells:
        found = cell.verdict
        numbers = (cell.mean("plain", "value"), cell.mean("plain", "in_domain"))
        shares = (found.shares.get(name) for name in names)
        words = (cell.task, cell.pe, cell.split, found.cause, f"{found.k}/{found.n}")
        rows.append([*map(Text, words), *(Text(percent(value)) for value in (*numbers, *shares))])
    columns = ["task", "encoding", "split", "verdict", "seeds", "error", "in domain", *names]
    return Table("Why: error, and the share restored, in %", columns, 4, rows, CAPTION)
