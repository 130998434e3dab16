"""The charts of the report as SVG, PNG or PDF files, drawn by vl-convert in the light colours.

>>> from pe_lab.report.pictures import drawn, heat_map
>>> from pe_lab.report.sections import sections
>>> from pe_lab.results.frame import by_split, read_runs
>>> runs = read_runs("runs", task="flipflop", state="finished")
>>> (section,) = sections(runs, by_split(runs))
>>> Path("heatmap.png").write_bytes(drawn(heat_map(section), "png"))
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
    """The heat map of a section as on the page: a row per setting with its number of seeds, a
    column per split and one for the mean, errors in % as numbers over half their 95 % interval and
    as colours, which grow with the square root."""
    most = reference(section)
    mean = "mean over lengths" if section.split else "OOD mean"
    values = [
        {
            "setting": f"{setting.pe} (n = {len(setting.seeds)}) {setting.differs}".strip(),
            "split": split,
            "text": percent(band.mean),
            "half": "" if band.half is None else f"± {percent(band.half)}",
            "shade": shade(band, most),
        }
        for setting in section.settings
        for split, band in {mean: setting.ood["error"], **setting.cells["error"]}.items()
        if band is not None
    ]
    row = {"field": "setting", "sort": None, "title": None, "axis": {"labelLimit": 600}}
    column = {"field": "split", "sort": [mean, *section.splits], "title": None}
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
    caption = (
        f"{section.title}: wrong answers in %, mean over n seeds ± half the 95 % interval "
        "(Student's t)."
    )
    return {
        "title": {"text": caption, "anchor": "start", "fontWeight": "normal", "fontSize": 12},
        "data": {"values": values},
        "width": {"step": 76},
        "height": {"step": 34},
        "layer": [
            {"mark": "rect", "encoding": {**place, "color": colour}},
            {
                "mark": {"type": "text", "dy": -5},
                "encoding": {**place, "text": {"field": "text"}, "color": ink},
            },
            {
                "mark": {"type": "text", "dy": 8, "fontSize": 10},
                "encoding": {**place, "text": {"field": "half"}, "color": ink},
            },
        ],
        "config": {
            "background": "#fff",
            "font": "sans-serif",
            "view": {"stroke": None},
            "axis": {"domain": False, "ticks": False, "labelFontSize": 12},
            "text": {"fontSize": 12},
        },
    }


def drawn(spec: Spec, form: str) -> bytes:
    """A specification as a file: svg, png or pdf."""
    # Imported here: it starts a JavaScript engine.
    import vl_convert

    if form == "svg":
        return str(vl_convert.vegalite_to_svg(in_light(spec))).encode()
    if form == "png":
        return bytes(vl_convert.vegalite_to_png(in_light(spec), scale=2))
    return bytes(vl_convert.vegalite_to_pdf(in_light(spec)))


def in_light(value: Any) -> Any:
    """With the page's CSS variables replaced by their light colours."""
    if isinstance(value, dict):
        return {key: in_light(part) for key, part in value.items()}
    if isinstance(value, list):
        return [in_light(part) for part in value]
    return LIGHT.get(value, value) if isinstance(value, str) else value
