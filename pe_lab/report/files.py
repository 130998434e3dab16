"""Charts as files: those of a report for a paper, and the table and chart of ``pe-lab eval``."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import wrap

import orjson
import polars as pl

from pe_lab.common.errors import UsageError, cannot_write
from pe_lab.common.files import read_file, remove_leftovers, replace_file, write_new_file
from pe_lab.common.html import drawn
from pe_lab.core.metrics import is_share
from pe_lab.inspection.data import Inspection
from pe_lab.inspection.page import whole_chart
from pe_lab.report.charts import CONFIG, Spec, charts, error_by_length, figure
from pe_lab.report.data import Section, evaluated_sections
from pe_lab.report.page import Report
from pe_lab.report.tables import overview, picture, table
from pe_lab.results.labels import labels
from pe_lab.results.presentation.evaluations import runs_of_evaluations
from pe_lab.store.schema import digest_of

RECORD = "charts.json"
"""Name and SHA-256 of each file that was written: only these are overwritten."""

Draw = Callable[[], bytes]


def chart_files(content: Report, form: str) -> dict[str, Draw]:
    """File name -> what draws it: the overview, the table and charts of every section, and each
    inspection."""
    specs: dict[str, Callable[[], Spec]] = {}
    if content.trained:
        specs["overview"] = lambda: picture(overview(content.trained))
    for section in (*content.trained, *content.evaluated):
        specs[f"{section.title} table"] = partial(_table, section)
        for chart in charts(section):
            specs[f"{section.title} {chart.name}"] = partial(figure, section, chart)
    for inspection in content.inspections:
        name = f"{inspection.task} {inspection.pe} seed{inspection.seed} inspection"
        if name in specs:  # of another setting
            name = f"{inspection.task} {inspection.pe} {inspection.path.name} inspection"
        specs[name] = partial(_inspection, inspection)
    return {
        re.sub(r"[^\w.]+", "-", name) + f".{form}": partial(_draw, spec, form)
        for name, spec in specs.items()
    }


def _draw(spec: Callable[[], Spec], form: str) -> bytes:
    return drawn(spec(), form)


def _table(section: Section) -> Spec:
    return picture(table(section))


def _inspection(inspection: Inspection) -> Spec:
    """The chart of an inspection under its title, with the first head, map and query chosen."""
    caption = wrap(inspection.summary, 110)
    title = {"text": inspection.heading, "subtitle": caption, "anchor": "start"}
    return {**whole_chart(inspection), "title": title, "background": "#fff"}


def write_charts(files: dict[str, Draw], folder: Path) -> None:
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
        for name, draw in files.items():
            image = draw()
            replace_file(folder / name, image)
            record[name] = digest_of(image)
    finally:
        replace_file(folder / RECORD, json.dumps(record, indent=1).encode())


def _record(folder: Path) -> dict[str, str]:
    try:
        found = orjson.loads(read_file(folder / RECORD))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_evaluations(evaluated: pl.DataFrame, path: Path, metric: str) -> Path:
    """Write ``path``, exact numbers and shares instead of %, and a chart of it (.svg) where
    something was measured; both are new files. Returns the path.

    Raises:
        RunError: a file exists, or cannot be written.
    """
    table = evaluated.write_csv().encode()
    _write_new(path, table)
    if evaluated["error"].is_not_null().any():
        _write_new(path.with_suffix(".svg"), drawn(evaluation_chart(evaluated, metric), "svg"))
    return path


def _write_new(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        write_new_file(path, content)
    except OSError as error:
        raise cannot_write(path, error) from None


def evaluation_chart(evaluated: pl.DataFrame, metric: str) -> Spec:
    """The metric by length: a chart for each task and split, a line for each setting and
    encoding."""
    runs = runs_of_evaluations(evaluated)
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
