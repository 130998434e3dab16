"""The charts of the report as figures for a paper: on white, with caption, legend and n."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from textwrap import wrap
from typing import Any, Literal

from pe_lab.core.metrics import TITLED, is_share
from pe_lab.report.bands import Band
from pe_lab.report.charts import CONFIG, Spec
from pe_lab.report.panels import Group, Panel
from pe_lab.report.sections import Section

COLOURS = tuple(f"var(--c{n})" for n in range(1, 9))
SHAPES = (
    "circle", "square", "triangle-up", "diamond",
    "cross", "triangle-down", "triangle-right", "triangle-left",
)  # fmt: skip
"""Of the coloured settings; the same as in charts.js."""
WIDTH, COLUMNS = 280, 3
BANDS = {
    "interval": "the 95 % interval (Student's t; none for one seed or two clusters)",
    "range": "the range of the seeds",
}
LABELS = {metric.name: metric.label for metric in TITLED}
Over = Literal["interval", "range"]


def figure(
    section: Section, group: Group, metric: str, over: Over = "interval", y_title: str = ""
) -> Spec:
    """The panels of a group side by side as one Vega-Lite specification.

    Args:
        metric: the group's first metric is shown where it has not this one.
        over: what the bands are.
        y_title: instead of the metric's label.
    """
    metric = metric if metric in group.metrics else group.metrics[0]
    drawn = {point.setting for panel in group.panels for point in panel.points}
    ranks = [rank for rank in section.colour_order if rank in drawn]
    slots = {rank: slot for slot, rank in enumerate(ranks[: len(COLOURS)])}
    share = is_share(metric)
    rows = [list(_rows(section, panel, metric, slots, over)) for panel in group.panels]
    if len(rows) > 1:
        rows = [part if _answers(group, part) else [] for part in rows]
    # Intervals of a loss can be far wider than the losses.
    ends = [row["high"] if share and row["chosen"] else row["y"] for part in rows for row in part]
    ends += [value for part in rows for row in part for value in row["seeds"]]
    top = 1.04 * max(ends, default=1.0) or 1.0
    panels = [
        _panel(panel, part, min(top, 100) if share else top, y_title or LABELS[metric])
        for panel, part in zip(group.panels, rows, strict=True)
        if part
    ]
    columns = min(COLUMNS, len(panels))
    return {
        "title": {
            "text": group.title,
            "subtitle": wrap(_caption(section, group, over, len(drawn) - len(slots)), 58 * columns),
            "anchor": "start",
        },
        "vconcat": [
            {"concat": panels, "columns": columns},
            _legend(section, slots, [row for part in rows for row in part]),
        ],
        "config": {**CONFIG, "background": "#fff"},
    }


def _answers(group: Group, rows: list[dict[str, Any]]) -> bool:
    """Whether a panel shows a coloured curve, or in other groups a coloured point."""
    xs = {row["x"] for row in rows if row["chosen"]}
    return len(xs) >= (2 if group.name.startswith("against-") else 1)


def _caption(section: Section, group: Group, over: Over, others: int) -> str:
    grey = f" In grey: {others} other settings." if others else ""
    guessed = " Dashed: guessing." if group.guessed else ""
    legend = f" {section.legend}" if section.legend else ""
    return f"{section.title}. {group.caption} {BANDS[over]}.{grey}{guessed}{legend}"


def _rows(
    section: Section, panel: Panel, metric: str, slots: dict[int, int], over: Over
) -> Iterator[dict[str, Any]]:
    """The rows of a panel, as charts.js makes them for the page."""
    unit = 100 if is_share(metric) else 1
    for point in panel.points:
        band = point.band(section, metric)
        if band is None:
            continue
        slot = slots.get(point.setting)
        low, high = _ends(band, over)
        # As on the page, where curves have none for brevity.
        seeds = [] if point.bands is not None else [unit * value for value in band.values]
        yield {
            "label": section.settings[point.setting].label,
            "x": point.x,
            "y": unit * band.mean,
            "low": max(0.0, unit * low),
            "high": min(100.0, unit * high) if unit == 100 else unit * high,
            "seeds": seeds if slot is not None and band.n > 1 else [],
            "chosen": slot is not None,
            "colour": None if slot is None else COLOURS[slot],
            "shape": None if slot is None else SHAPES[slot],
            "n": band.n,
            "setting": point.setting,
        }


def _ends(band: Band, over: Over) -> tuple[float, float]:
    if over == "range":
        return band.least, band.most
    half = band.half or 0.0
    return band.mean - half, band.mean + half


def _panel(panel: Panel, rows: list[dict[str, Any]], top: float, y_title: str) -> Spec:
    spec = deepcopy(panel.spec)
    # What the page sets by signals.
    del spec["params"], spec["autosize"], spec["config"]
    for layer in spec["layer"]:
        y = layer["encoding"]["y"]
        y["axis"]["title"] = y_title
        y["scale"] |= {"exponent": 1, "domainMax": top}
        if "data" in layer:
            guess = [] if panel.guess is None else [{"y": 100 * panel.guess}]
            layer["data"] = {"values": [row for row in guess if row["y"] <= top]}
    return spec | {"title": panel.title, "width": WIDTH, "data": {"values": rows}}


def _legend(section: Section, slots: dict[int, int], rows: Sequence[dict[str, Any]]) -> Spec:
    """A line for each coloured setting, with its number of seeds."""
    entries = []
    for rank, slot in slots.items():
        n = {row["n"] for row in rows if row["setting"] == rank} or {0}
        seeds = f"{min(n)}" if len(n) == 1 else f"{min(n)} to {max(n)}"
        label = f"{section.settings[rank].label} (n = {seeds})"
        entries.append({"label": label, "slot": slot})
    y = {"field": "slot", "type": "ordinal", "axis": None}

    def of_slot(values: Sequence[str]) -> Spec:
        shown = list(slots.values())
        scale = {"domain": shown, "range": [values[slot] for slot in shown]}
        return {"field": "slot", "type": "nominal", "legend": None, "scale": scale}

    return {
        "data": {"values": entries},
        "width": WIDTH,
        "height": {"step": 16},
        "view": {"stroke": None},
        "layer": [
            {
                "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
                "encoding": {
                    "x": {"value": 6},
                    "y": y,
                    "color": of_slot(COLOURS),
                    "shape": of_slot(SHAPES),
                },
            },
            {
                "mark": {"type": "text", "align": "left", "fontSize": 11, "limit": 800},
                "encoding": {"x": {"value": 16}, "y": y, "text": {"field": "label"}},
            },
        ],
    }
