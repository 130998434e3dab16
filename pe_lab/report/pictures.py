"""The charts of the report as SVG or PNG files, drawn by vl-convert in the light colours.

>>> from pe_lab.report.pictures import heat_map, png
>>> from pe_lab.report.sections import sections
>>> from pe_lab.results.frame import by_split, read_runs
>>> runs = read_runs("runs", task="flipflop", state="finished")
>>> (section,) = sections(runs, by_split(runs))
>>> Path("heatmap.png").write_bytes(png(heat_map(section)))
"""

from typing import Any

from pe_lab.common.console import percent
from pe_lab.report.charts import Spec
from pe_lab.report.page import DEEP, reference, shade
from pe_lab.report.sections import Section

LIGHT = {
    "var(--muted)": "#5a5e66",
    "var(--line)": "#e6e3dd",
    "var(--faint)": "#878b93",
    "var(--context)": "#c6c3bc",
    "inherit": "sans-serif",
}
"""The light colours of page.css, and a font that is always there."""
HEAT = ("#fcfbf9", "#eba665", "#611a06")
"""Its colours of the heat map, from no error to the largest."""


def heat_map(section: Section) -> Spec:
    """The heat map of a section as on the page: a row per setting, a column per split, errors in
    % as numbers and as colours, which grow with the square root."""
    most = reference(section)
    values = [
        {
            "setting": setting.label,
            "split": split,
            "text": percent(band.mean),
            "shade": shade(band, most),
        }
        for setting in section.settings
        for split, band in setting.cells["error"].items()
        if band is not None
    ]
    row = {"field": "setting", "sort": None, "title": None, "axis": {"labelLimit": 400}}
    column = {"field": "split", "sort": list(section.splits), "title": None}
    place: Spec = {
        "y": {"type": "nominal", **row},
        "x": {"type": "nominal", **column, "axis": {"orient": "top", "labelAngle": 0}},
    }
    colour = {
        "field": "shade",
        "type": "quantitative",
        "scale": {"domain": [0, 0.5, 1], "range": HEAT, "interpolate": "lab", "clamp": True},
        "legend": None,
    }
    ink = {"condition": {"test": f"datum.shade > {DEEP}", "value": "#fff"}, "value": "#000"}
    return {
        "data": {"values": values},
        "width": {"step": 72},
        "height": {"step": 22},
        "layer": [
            {"mark": "rect", "encoding": {**place, "color": colour}},
            {"mark": "text", "encoding": {**place, "text": {"field": "text"}, "color": ink}},
        ],
        "config": {
            "background": "#fff",
            "font": "sans-serif",
            "view": {"stroke": None},
            "axis": {"domain": False, "ticks": False, "labelFontSize": 12},
            "text": {"fontSize": 12},
        },
    }


def svg(spec: Spec) -> str:
    """A specification as SVG."""
    # Imported here: it starts a JavaScript engine.
    import vl_convert

    return str(vl_convert.vegalite_to_svg(in_light(spec)))


def png(spec: Spec, scale: float = 2) -> bytes:
    """A specification as PNG."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(in_light(spec), scale=scale))


def in_light(value: Any) -> Any:
    """With the page's CSS variables replaced by their light colours."""
    if isinstance(value, dict):
        return {key: in_light(part) for key, part in value.items()}
    if isinstance(value, list):
        return [in_light(part) for part in value]
    return LIGHT.get(value, value) if isinstance(value, str) else value
