"""The charts of the report as SVG, PNG or PDF files, drawn by vl-convert in the light colours.

>>> from pe_lab.report.pictures import drawn, heat_map
>>> from pe_lab.report.sections import sections
>>> from pe_lab.results.frame import by_split, read_runs
>>> runs = read_runs("runs", task="flipflop", state="finished")
>>> (section,) = sections(runs, by_split(runs))
>>> Path("heatmap.png").write_bytes(drawn(heat_map(section), "png"))
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from pe_lab.common.console import percent
from pe_lab.report.charts import Spec
from pe_lab.report.page import DEEP, reference, shade
from pe_lab.report.panels import Group
from pe_lab.report.sections import Section
from pe_lab.results.presentation.cells import CLUSTERED

FONTS = {
    "inherit": "sans-serif",
    "system-ui": "sans-serif",
    "ui-monospace, monospace": "monospace",
}
"""Those of the page, and fonts that are always there."""
HEAT = ["var(--heat-0)", "var(--heat-1)", "var(--heat-2)"]
SHADE: Spec = {
    "field": "shade",
    "type": "quantitative",
    "scale": {"domain": [0, 0.5, 1], "range": HEAT, "interpolate": "lab", "clamp": True},
    "legend": None,
}
"""The colour of a heat map's cells."""
HEAT_CONFIG: Spec = {
    "background": "#fff",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {"domain": False, "ticks": False, "labelFontSize": 12},
    "text": {"fontSize": 12},
}


def heat_map(section: Section) -> Spec:
    """The heat map of a section as on the page: a row per setting with its number of seeds, a
    column per split and at last one for the mean, and in each cell k/n and the median in % over the
    mean and half its 95 % interval. Colours are the mean and grow with its square root."""
    row = {"field": "setting", "sort": None, "title": None, "axis": {"labelLimit": 600}}
    column = {"field": "split", "sort": [*section.splits, _mean_column(section)], "title": None}
    place: Spec = {
        "y": {"type": "nominal", **row},
        "x": {"type": "nominal", **column, "axis": {"orient": "top", "labelAngle": 0}},
    }
    return {
        "title": heat_title(_heat_caption(section)),
        "data": {"values": _heat_values(section)},
        "width": {"step": 76},
        "height": {"step": 34},
        "layer": [
            {"mark": "rect", "encoding": {**place, "color": SHADE}},
            *heat_texts(place),
        ],
        "config": HEAT_CONFIG,
    }


def heat_title(lines: Sequence[str]) -> Spec:
    """A caption above a heat map."""
    return {"text": lines, "anchor": "start", "fontWeight": "normal", "fontSize": 12}


def heat_texts(place: Spec) -> list[Spec]:
    """The layers of the two texts of each cell, ``text`` over ``below``, in an ink that can be read
    on its shade."""
    ink = {"condition": {"test": f"datum.shade > {DEEP}", "value": "#fff"}, "value": "#000"}
    marks: dict[str, Spec] = {"text": {"dy": -5}, "below": {"dy": 8, "fontSize": 10}}
    return [
        {
            "mark": {"type": "text", **mark},
            "encoding": {**place, "text": {"field": field}, "color": ink},
        }
        for field, mark in marks.items()
    ]


def _mean_column(section: Section) -> str:
    return "mean over lengths" if section.split else "OOD mean"


def _heat_values(section: Section) -> list[dict[str, Any]]:
    """Of each cell its setting, split, two texts and shade."""
    most = reference(section)
    mean = _mean_column(section)
    return [
        {
            "setting": " ".join(
                [f"{setting.pe}{setting.mark} (n = {len(setting.seeds)})", setting.differs]
            ).strip(),
            "split": split,
            "text": f"{band.rate} {percent(band.median)}" if band.rate else percent(band.mean),
            "below": " ".join(
                [
                    *([percent(band.mean)] if band.rate else []),
                    *([] if band.half is None else [f"± {percent(band.half)}"]),
                ]
            ),
            "shade": shade(band, most),
        }
        for setting in section.settings
        for split, band in {**setting.cells["error"], mean: setting.ood["error"]}.items()
        if band is not None
    ]


def _heat_caption(section: Section) -> list[str]:
    """Its two lines: what the cells hold, and what marks them."""
    cells = [band for setting in section.settings for band in setting.cells["error"].values()]
    means = [setting.ood["error"] for setting in section.settings]
    marks = ""
    if any(band and band.clusters for band in (*cells, *means)):
        marks = f"{CLUSTERED} "
    rated = any(band and band.k is not None and band.n > 1 for band in cells)
    first = "k/n seeds up to the threshold and their median; below, " if rated else ""
    first += "the mean" if rated else "Mean"
    return [
        f"{section.title}: wrong answers in %. {first} over n seeds ± half the 95 % interval",
        f"(Student's t). {marks}{section.legend}".strip(),
    ]


def breakdown_map(section: Section, group: Group) -> Spec:
    """The error of each setting over a property of the answer and the splits, such as depth and
    length of ``task=needle``: a panel for each setting, from the panels of ``group``, one for each
    split. Errors in %, colours from no error to that of guessing."""
    what = group.name.removeprefix("by-")
    values = [
        {
            "setting": f"{setting.pe}{setting.mark} {setting.differs}".strip(),
            "split": panel.split,
            "x": point.x,
            "text": percent(band.mean),
            "error": band.mean,
        }
        for panel in group.panels
        for point in panel.points
        if (band := point.band(section, "error")) is not None
        for setting in (section.settings[point.setting],)
    ]
    most = max([panel.guess for panel in group.panels if panel.guess] or [1.0])
    colour = {
        "field": "error",
        "type": "quantitative",
        "scale": {"domain": [0, most / 2, most], "range": HEAT, "interpolate": "lab"},
        "legend": None,
    }
    place: Spec = {
        "x": {"field": "x", "type": "ordinal", "title": what, "axis": {"labelAngle": 0}},
        "y": {"field": "split", "type": "nominal", "sort": section.splits, "title": None},
    }
    ink = {"condition": {"test": f"datum.error > {DEEP} * {most}", "value": "#fff"}}
    title = f"{section.title}: wrong answers in % by {what} and split, mean over seeds"
    return {
        "title": {"text": title, "anchor": "start", "fontWeight": "normal", "fontSize": 12},
        "data": {"values": values},
        "facet": {"field": "setting", "sort": None, "title": None},
        "columns": 3,
        "spec": {
            "width": {"step": 34},
            "height": {"step": 24},
            "layer": [
                {"mark": "rect", "encoding": {**place, "color": colour}},
                {
                    "mark": {"type": "text", "fontSize": 10},
                    "encoding": {
                        **place,
                        "text": {"field": "text"},
                        "color": {**ink, "value": "#000"},
                    },
                },
            ],
        },
        "config": {"background": "#fff", "font": "sans-serif", "view": {"stroke": None}},
    }


def drawn(spec: Spec, form: str) -> bytes:
    """A specification in Vega-Lite or Vega as a file: svg, png or pdf."""
    # Imported here: it starts a JavaScript engine.
    import vl_convert

    kind = "vega" if "marks" in spec else "vegalite"
    draw = getattr(vl_convert, f"{kind}_to_{form}")
    image = draw(in_light(spec), scale=2) if form == "png" else draw(in_light(spec))
    return image.encode() if isinstance(image, str) else bytes(image)


def in_light(value: Any) -> Any:
    """With the light colours of the style sheets in place of CSS variables."""
    if isinstance(value, dict):
        return {key: in_light(part) for key, part in value.items()}
    if isinstance(value, list):
        return [in_light(part) for part in value]
    if not isinstance(value, str):
        return value
    if value in FONTS:
        return FONTS[value]
    return re.sub(r"var\((--[\w-]+)\)", lambda match: light_colours()[match[1]], value)


@cache
def light_colours() -> dict[str, str]:
    """CSS variable -> colour on a light page, from ``--ink: light-dark(#1c1e22, #e9e7e3)``."""
    sheets = (("pe_lab.report", "page.css"), ("pe_lab.inspection", "inspection.css"))
    text = "".join((resources.files(package) / name).read_text() for package, name in sheets)
    return dict(re.findall(r"(--[\w-]+): (?:light-dark\()?(#\w+)", text))
