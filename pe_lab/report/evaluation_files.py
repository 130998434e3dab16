"""What was evaluated as files: a table with a row a number, and a picture of it."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import IO, Any

import polars as pl

from pe_lab.common.errors import cannot_write
from pe_lab.common.metrics import is_share
from pe_lab.report.charts import Scale, Spec, lines
from pe_lab.results.evaluations import shown_encoding

COLOURS = ("#0b6db0", "#d1570a", "#00805f", "#b8559a", "#2b2b2b", "#8f7400", "#6257c4", "#8c1d3f")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
INK = {
    "var(--muted)": "#5a5e66",
    "var(--line)": "#e6e3dd",
    "var(--faint)": "#878b93",
    "var(--context)": "#c6c3bc",
    "inherit": "sans-serif",
}
"""The report's colours, light."""
PANELS = 3
"""Beside each other."""


def write(evaluated: pl.DataFrame, path: Path, metric: str) -> Path:
    """Write ``path``, exact numbers and shares instead of %, and beside it its picture (.svg),
    where something was measured; both are new files. Returns the path.

    Raises:
        RunError: they are there already, or the disk refuses.
    """
    table = evaluated.write_csv().encode()
    _new(path, lambda file: file.write(table))
    if evaluated["error"].is_not_null().any():
        drawn = picture(evaluated, metric).encode()
        _new(path.with_suffix(".svg"), lambda file: file.write(drawn))
    return path


def _new(path: Path, put: Callable[[IO[bytes]], Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            put(file)
    except OSError as error:
        raise cannot_write(path, error) from None


def picture(evaluated: pl.DataFrame, metric: str) -> str:
    """An SVG: the metric over the length, a panel for each task and split, a line for each
    encoding with the range of its runs."""
    # It starts a JavaScript engine.
    import vl_convert

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
    return str(vl_convert.vegalite_to_svg(_inked(whole)))


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
    standing: dict[str, Any] = {
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
    spec = dict(_replaced(spec, standing))
    for layer in spec["layer"]:
        for channel in layer["encoding"].keys() & {"fill", "stroke"}:
            # One channel for all, so that there is one legend.
            layer["encoding"]["color"] = layer["encoding"].pop(channel)
    # The page's scripts fill these in; here they are known.
    spec.pop("params")
    spec.pop("autosize")
    return spec | {"title": title, "width": 300, "height": 220, "data": {"values": values}}


def _replaced(value: Any, standing: dict[str, Any]) -> Any:
    """With each part that is a key of ``standing``, as JSON, replaced."""
    if isinstance(value, dict):
        found = json.dumps(value)
        if found in standing:
            return deepcopy(standing[found])
        return {key: _replaced(part, standing) for key, part in value.items()}
    return [_replaced(part, standing) for part in value] if isinstance(value, list) else value


def _inked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _inked(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_inked(part) for part in value]
    return INK.get(value, value) if isinstance(value, str) else value
