"""The report as one HTML file: an overview, a sentence for each task, and the rest folded; and its
charts, and those of ``pe-lab eval``, as files."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import orjson
import polars as pl

from pe_lab.core.errors import PeLabError, UsageError, writing
from pe_lab.core.files import replace_file, write_new_file
from pe_lab.core.metrics import is_share
from pe_lab.report.charts import CONFIG, Spec, charts, error_by_length, figure
from pe_lab.report.data import Section, evaluated, evaluated_sections, sections
from pe_lab.report.html import drawn, rendered
from pe_lab.report.inspection import fragment, whole_chart
from pe_lab.report.tables import overview, picture, sentence, table
from pe_lab.results import verdicts
from pe_lab.results.labels import labels
from pe_lab.results.leaderboard.rows import MADE_WITH, environment_of
from pe_lab.results.table import FACTS, by_split, runs_of, text
from pe_lab.store.files import digest_of

if TYPE_CHECKING:
    from pe_lab.explain.inspect import Inspection

GENERATOR = "pe-lab report"
NO_SETTING = {*FACTS, "runs_dir", "force", "debug"} - {"task", "pe", "seed"}
MAX_VALUES = 12
"""Maximum of values listed for a key; the rest are counted."""
MAX_INSPECTED, MAX_INSPECTED_PER_TASK = 8, 4
"""Limits on the runs that are inspected by default."""


@dataclass(frozen=True)
class Report:
    """What the page and the chart files are made of.

    Args:
        evaluated: the sections of evaluations, shown with their tasks.
        unread: a message for each file that cannot be read.
        refused: a message for each run that could not be inspected.
    """

    trained: Sequence[Section]
    evaluated: Sequence[Section]
    unread: Sequence[str]
    inspections: Sequence[Inspection]
    refused: Sequence[str]


def report(runs: pl.DataFrame, where: str | None, inspect: str | None) -> Report:
    """The report of these runs.

    Args:
        where: the condition that selected the runs.
        inspect: the folders of runs to inspect, separated by commas, or "none"; by default one run
            of the best encodings of each task.

    Raises:
        UsageError: a run of ``inspect`` cannot be inspected.
    """
    finished = runs.filter(pl.col("state") == "finished")
    if finished.is_empty():
        return Report([], [], [], [], [])
    why, unjudged = verdicts.recorded(finished)
    trained = sections(finished, by_split(finished), where, why)
    since, unread = evaluated(finished, where)
    paths = [] if inspect == "none" else inspect.split(",") if inspect else _best(trained)
    found, refused = [], []
    for path in paths:
        # Imported here: this is the only part that needs torch.
        from pe_lab.explain.inspect import inspect_run

        try:
            found.append(inspect_run(path))
        except PeLabError as error:
            if inspect is not None:
                raise
            refused.append(str(error))
    return Report(trained, since, [*unread, *unjudged], found, refused)


def _best(found: Sequence[Section]) -> list[str]:
    """Runs with weights: per task, the lowest seed of each of the best encodings."""
    each = min(MAX_INSPECTED_PER_TASK, max(1, MAX_INSPECTED // max(1, len(found))))
    paths: list[str] = []
    for section in found[:MAX_INSPECTED]:
        of_task: dict[str, str] = {}
        for setting in section.settings:
            folders = section.runs.filter(setting=setting.name).sort("seed")["path"]
            with_weights = (path for path in folders if (Path(path) / "checkpoint.pt").is_file())
            if setting.pe not in of_task and (path := next(with_weights, None)):
                of_task[setting.pe] = path
        paths += list(of_task.values())[:each]
    return paths


def render(content: Report, runs: pl.DataFrame, title: str, command: str) -> str:
    """The HTML of the page.

    Args:
        runs: all of them, unfinished ones too.
        command: that made the page.
    """
    return rendered(
        "pe_lab.report",
        "report.html",
        generator=GENERATOR,
        title=title,
        command=command,
        made=datetime.now().astimezone(),
        versions=f"pe-lab {metadata.version('pe-lab')}, Python {sys.version.split()[0]}",
        report=content,
        states=states(runs),
        unfinished=_unfinished(runs),
        provenance=_provenance(runs.filter(pl.col("state") == "finished")["path"]),
        overview=overview(content.trained),
        sentence=sentence,
        table=table,
        charts=charts,
        settings=_settings,
        fragment=fragment,
    )


def states(runs: pl.DataFrame) -> str:
    """``61 finished, 1 failed``."""
    ranked = sorted(Counter(runs["state"]).items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{n} {state}" for state, n in ranked)


def _settings(runs: pl.DataFrame) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The keys that all runs share, and those in which they differ, with values as on the command
    line."""
    common, differing = {}, {}
    for key in runs.columns:
        if key in NO_SETTING or "/" in key or key.startswith("tracker"):
            continue
        values = Counter(map(text, runs[key].drop_nulls().to_list()))
        if len(values) == 1 and values.total() == len(runs):
            common[key] = next(iter(values))
        elif values:
            differing[key] = _counted(values)
    return common, differing


def _counted(values: Counter[str]) -> list[str]:
    """The most frequent values, each with its number of runs, and how many more there are."""
    ranked = sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))
    more = len(ranked) - MAX_VALUES
    shown = [f"{value} ×{n}" for value, n in ranked[:MAX_VALUES]]
    return [*shown, f"and {more} more"] if more > 0 else shown


def _unfinished(runs: pl.DataFrame) -> list[tuple[str, ...]]:
    """Every run without a result: path, state, step of steps, and why."""
    columns = ("path", "state", "step", "steps", "message")
    rows = runs.filter(pl.col("state") != "finished").select(columns).iter_rows()
    return [
        (path, state, "" if step is None else f"{step} of {steps}", message or "")
        for path, state, step, steps, message in rows
    ]


def _provenance(paths: Iterable[str]) -> dict[str, list[str]]:
    """What the finished runs were made with, each value with its number of runs. Of a run that was
    resumed, the last start counts."""
    values: dict[str, Counter[str]] = {name: Counter() for name in MADE_WITH}
    for path in paths:
        for name, value in zip(MADE_WITH, environment_of(Path(path)), strict=True):
            values[name][value or "not recorded"] += 1
    return {name: _counted(of) for name, of in values.items()}


RECORD = "charts.json"
"""Name and SHA-256 of each file that was written: only these are overwritten."""


def chart_files(content: Report, form: str) -> dict[str, Spec]:
    """File name -> its chart: the overview, the table and charts of every section, and each
    inspection."""
    specs: dict[str, Spec] = {}
    if content.trained:
        specs["overview"] = picture(overview(content.trained))
    for section in (*content.trained, *content.evaluated):
        specs[f"{section.title} table"] = picture(table(section))
        for chart in charts(section):
            specs[f"{section.title} {chart.name}"] = figure(section, chart)
    for inspection in content.inspections:
        name = f"{inspection.task} {inspection.pe} seed{inspection.seed} inspection"
        if name in specs:  # of another setting
            name = f"{inspection.task} {inspection.pe} {inspection.path.name} inspection"
        specs[name] = _inspection(inspection)
    return {re.sub(r"[^\w.]+", "-", name) + f".{form}": spec for name, spec in specs.items()}


def _inspection(inspection: Inspection) -> Spec:
    """The chart of an inspection under its title, with the first head, map and query chosen."""
    caption = wrap(inspection.summary, 110)
    title = {"text": inspection.heading, "subtitle": caption, "anchor": "start"}
    return {**whole_chart(inspection), "title": title, "background": "#fff"}


def write_charts(files: dict[str, Spec], folder: Path) -> None:
    """Draw all of them into ``folder``.

    Raises:
        UsageError: a file of that name was not written by this function, or was changed since.
        OSError: a file cannot be written.
    """
    record = _record(folder)
    for name in files:
        path = folder / name
        if path.exists() and digest_of(path.read_bytes()) != record.get(name):
            raise UsageError(
                f"{path} was not written by pe-lab report, or was changed since, and is left as "
                "it is: move it away or choose another folder with out="
            )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, spec in files.items():
            image = drawn(spec, name.rpartition(".")[2])
            replace_file(folder / name, image)
            record[name] = digest_of(image)
    finally:
        replace_file(folder / RECORD, json.dumps(record, indent=1).encode())


def _record(folder: Path) -> dict[str, str]:
    try:
        found = orjson.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_evaluations(evaluated: pl.DataFrame, path: Path, metric: str) -> Path:
    """Write ``path``, exact numbers and shares instead of %, and a chart of it (.svg) where
    something was measured; both are new files. Returns the path.

    Raises:
        RunError: a file exists, or cannot be written.
    """
    write_new(path, evaluated.write_csv().encode())
    if evaluated["error"].is_not_null().any():
        write_new(path.with_suffix(".svg"), drawn(evaluation_chart(evaluated, metric), "svg"))
    return path


def write_new(path: Path, content: bytes) -> None:
    """Write a new file, in a new folder if need be; RunError if it exists or cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new_file(path, content)


def evaluation_chart(evaluated: pl.DataFrame, metric: str) -> Spec:
    """The metric by length: a chart for each task and split, a line for each setting and
    encoding."""
    runs = runs_of(evaluated["path"].unique(maintain_order=True))
    value = 1 - pl.col("error") if metric == "accuracy" else pl.col(metric)
    guess = {"error": pl.col("guess"), "accuracy": 1 - pl.col("guess")}.get(metric)
    rows = evaluated.filter(pl.col("error").is_not_null()).with_columns(
        error=value, guess=pl.lit(None, pl.Float64) if guess is None else guess
    )
    unit, title = (100, f"{metric} (%)") if is_share(metric) else (1, metric)
    figures = [
        figure(section, error_by_length(section, title, unit))
        for section in evaluated_sections(rows, runs, labels(runs))
    ]
    return {
        "$schema": figures[0]["$schema"],
        "hconcat": [
            {k: v for k, v in f.items() if k not in ("config", "$schema")} for f in figures
        ],
        "config": {**CONFIG, "background": "#fff"},
    }
