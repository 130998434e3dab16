"""The files of ``pe-lab eval``: a table with one number per row, and a picture of it."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import IO, Any

import polars as pl

from pe_lab.common.errors import cannot_write
from pe_lab.common.metrics import is_share
from pe_lab.report.charts import Scale, Spec, lines
from pe_lab.report.pictures import svg
from pe_lab.results.evaluations import shown_encoding

COLOURS = ("#0b6db0", "#d1570a", "#00805f", "#b8559a", "#2b2b2b", "#8f7400", "#6257c4", "#8c1d3f")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
PANELS = 3
"""Side by side."""


def write(evaluated: pl.DataFrame, path: Path, metric: str) -> Path:
    """Write ``path``, exact numbers and shares instead of %, and a picture of it (.svg) where
    something was measured; both are new files. Returns the path.

    Raises:
        RunError: a file exists, or cannot be written.
    """
    table = evaluated.write_csv().encode()
    _new(path, lambda file: file.write(table))
    if evaluated["error"].is_not_null().any():
        image = picture(evaluated, metric).encode()
        _new(path.with_suffix(".svg"), lambda file: file.write(image))
    return path


def _new(path: Path, write_to: Callable[[IO[bytes]], Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            write_to(file)
    except OSError as error:
        raise cannot_write(path, error) from None


def picture(evaluated: pl.DataFrame, metric: str) -> str:
    """An SVG: the metric over the length, a panel for each task and split, a line for each
    encoding with the range of its runs."""
    share = is_share(metric)
    value = 1 - pl.col("error") if metric == "accuracy" else pl.col(metric)
    rows = evaluated.filter(pl.col("error").is_not_null()).with_columns(
        y=value * (100 if share else 1),
        label=shown_encoding(),
    )
    groups = ["task", "split", "label", "tokens"]
    means = rows.group_by(groups, maintain_order=True).agg(
        y=pl.col("y").mean(), low=pl.col("y").min(), high=pl.col("y").max()
    )
    labels = list(dict.fromkeys(means["label"]))
    title = f"{metric}{' (%)' if share else ''}"
    panels = [
        _panel(f"{task}, {split}", title, part.to_dicts(), labels)
        for (task, split), part in means.group_by("task", "split", maintain_order=True)
    ]
    whole: Spec = {"concat": panels, "columns": PANELS, "config": panels[0].pop("config")}
    for panel in panels[1:]:
        del panel["config"]
    return svg(whole)


def _panel(title: str, y_title: str, points: list[dict[str, Any]], labels: list[str]) -> Spec:
    ticks = sorted({point["tokens"] for point in points})
    scale: Scale = "log2" if len(ticks) > 1 else "ordinal"
    top = max((point["high"] for point in points if point["high"] is not None), default=0.0) or 1.0
    values = [
        {**point, "x": point["tokens"], "chosen": True, "y_text": "", "label_text": point["label"]}
        for point in points
    ]
    spec = lines("tokens of a sequence", y_title, scale, ticks)
    colours = [COLOURS[n % len(COLOURS)] for n in range(len(labels))]
    shapes = [SHAPES[n % len(SHAPES)] for n in range(len(labels))]
    legend = {"title": None, "symbolOpacity": 1}
    named = {"field": "label", "type": "nominal", "sort": None, "legend": legend}
    replacements: dict[str, Any] = {
        json.dumps({"expr": "top"}): top,
        json.dumps({"expr": "power"}): 1,
        json.dumps({"field": "colour", "type": "nominal", "scale": None}): {
            **named,
            "scale": {"domain": labels, "range": colours},
        },
        json.dumps({"field": "shape", "type": "nominal", "scale": None}): {
            **named,
            "scale": {"domain": labels, "range": shapes},
        },
    }
    spec = dict(_replaced(spec, replacements))
    for layer in spec["layer"]:
        for channel in layer["encoding"].keys() & {"fill", "stroke"}:
            # One channel for all, so that there is one legend.
            layer["encoding"]["color"] = layer["encoding"].pop(channel)
    # Signals of the page's scripts.
    spec.pop("params")
    spec.pop("autosize")
    return spec | {"title": title, "width": 300, "height": 220, "data": {"values": values}}


def _replaced(value: Any, replacements: dict[str, Any]) -> Any:
    """With each part replaced that is, as JSON, a key of ``replacements``."""
    if isinstance(value, dict):
        key_text = json.dumps(value)
        if key_text in replacements:
            return deepcopy(replacements[key_text])
        return {key: _replaced(part, replacements) for key, part in value.items()}
    return [_replaced(part, replacements) for part in value] if isinstance(value, list) else value
