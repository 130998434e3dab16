"""The files of ``pe-lab eval``: a table with one number per row, and a chart of it."""

from pathlib import Path

import polars as pl

from pe_lab.common.errors import cannot_write
from pe_lab.common.files import remove_leftovers, write_new_file
from pe_lab.core.metrics import is_share
from pe_lab.report.charts import Spec
from pe_lab.report.evaluated import against_length, evaluated_sections
from pe_lab.report.figures import figure
from pe_lab.report.pictures import drawn
from pe_lab.results.labels import labels
from pe_lab.results.presentation.evaluations import runs_of_evaluations


def write(evaluated: pl.DataFrame, path: Path, metric: str) -> Path:
    """Write ``path``, exact numbers and shares instead of %, and a chart of it (.svg) where
    something was measured; both are new files. Returns the path.

    Raises:
        RunError: a file exists, or cannot be written.
    """
    table = evaluated.write_csv().encode()
    _new(path, table)
    if evaluated["error"].is_not_null().any():
        image = drawn(chart(evaluated, metric), "svg")
        _new(path.with_suffix(".svg"), image)
    return path


def _new(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        write_new_file(path, content)
    except OSError as error:
        raise cannot_write(path, error) from None


def chart(evaluated: pl.DataFrame, metric: str) -> Spec:
    """The metric over the length, a figure for each task and split, a line for each setting and
    encoding with the range of its runs."""
    runs = runs_of_evaluations(evaluated)
    # The column "error" is drawn in %, "loss" as it is.
    shown = "error" if is_share(metric) else "loss"
    value = 1 - pl.col("error") if metric == "accuracy" else pl.col(metric)
    guess = {"error": pl.col("guess"), "accuracy": 1 - pl.col("guess")}.get(metric)
    rows = evaluated.filter(pl.col("error").is_not_null()).with_columns(
        value.alias(shown), guess=pl.lit(None, pl.Float64) if guess is None else guess
    )
    title = f"{metric}{' (%)' if shown == 'error' else ''}"
    figures = [
        figure(section, group, shown, over="range", y_title=title)
        for section in evaluated_sections(rows, runs, labels(runs))
        for group in against_length(section)
    ]
    configs = [figure.pop("config") for figure in figures]
    return {"concat": figures, "columns": 3, "config": configs[0]}
