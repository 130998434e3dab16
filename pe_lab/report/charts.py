"""The charts of the report as Vega-Lite specifications.

A chart holds no rows and no title of y: both depend on what is selected. Rows have the columns

    label     the setting                      x, y       the point, y in the unit of the axis
    colour    of the setting, where chosen     low, high  the band around y
    shape     of its points                    chosen     false: a thin grey line behind
    y_text    y and its interval               label_text the point for a screen reader
    seeds     the values of y of single seeds, drawn as dots; empty where unknown

and the signals are ``top`` (the end of the y axis) and ``power`` (1: linear, 0.5: square root).
Colours are CSS variables, so that light, dark and print need no second drawing.
"""

from typing import Any, Literal

Spec = dict[str, Any]
Scale = Literal["linear", "log2", "log10", "ordinal"]

CONFIG: Spec = {
    "background": None,
    "font": "inherit",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "gridColor": "var(--line)",
        "domainColor": "var(--faint)",
        "tickColor": "var(--faint)",
        "labelFlush": False,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "tickCount": 4, "minExtent": 26, "labelPadding": 6},
}
"""Of all charts."""

_CHOSEN = [{"filter": "datum.chosen"}]
_OTHER = [{"filter": "!datum.chosen"}]
_COLOUR = {"field": "colour", "type": "nominal", "scale": None}
_SHAPE = {"field": "shape", "type": "nominal", "scale": None}
_LABEL = {"field": "label", "type": "nominal"}
_DESCRIPTION = {"field": "label_text"}


def _seeds(x: Spec, y: Spec) -> Spec:
    """A dot for each seed of the chosen settings."""
    return {
        "transform": [*_CHOSEN, {"flatten": ["seeds"]}],
        "mark": {"type": "circle", "size": 14, "opacity": 0.55, "aria": False, "tooltip": None},
        "encoding": {"x": x, "y": {**y, "field": "seeds"}, "color": _COLOUR},
    }


def lines(x_title: str, scale: Scale, values: list[Any], height: int = 170) -> Spec:
    """Mean lines with their bands; ``values`` are the ticks of x, or all its values if ordinal."""
    x = _axis(x_title, scale, values, ",d")
    y = _y()
    tip = [
        {"field": "label", "title": "setting"},
        {"field": "x", "type": "ordinal", "title": x_title},
        {"field": "y_text", "title": "mean"},
    ]
    layers = [
        {
            "data": {"name": "guess", "values": []},
            "mark": {"type": "rule", "stroke": "var(--faint)", "strokeDash": [3, 3]},
            "encoding": {"y": {**y, "field": "y"}},
        },
        {
            "transform": _OTHER,
            "mark": {"type": "line", "stroke": "var(--context)", "strokeWidth": 1, "aria": False},
            "encoding": {"x": x, "y": y, "detail": _LABEL, "tooltip": tip[:1]},
        },
        {
            "transform": _CHOSEN,
            "mark": {"type": "area", "opacity": 0.13, "aria": False, "tooltip": None},
            "encoding": {
                "x": x,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
                "fill": _COLOUR,
                "detail": _LABEL,
            },
        },
        {
            "transform": _CHOSEN,
            "mark": {"type": "line", "strokeWidth": 2, "aria": False},
            "encoding": {"x": x, "y": y, "stroke": _COLOUR, "detail": _LABEL, "tooltip": tip[:1]},
        },
        _seeds(x, y),
        _points(x, y, tip, 34),
    ]
    return {"height": height, "layer": layers, **_common()}


def _points(x: Spec, y: Spec, tip: list[Spec], size: int) -> Spec:
    """The chosen settings, in their colours and shapes, described for screen readers."""
    return {
        "transform": _CHOSEN,
        "mark": {"type": "point", "filled": True, "size": size, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": _COLOUR,
            "shape": _SHAPE,
            "tooltip": tip,
            "description": _DESCRIPTION,
        },
    }


def scatter(x_title: str, xs: list[float], height: int = 260) -> Spec:
    """One point per setting, with the band of y as a bar. The x axis is
    logarithmic where its values ``xs`` differ by a factor of 4."""
    x = _axis(x_title, "log10" if max(xs) / min(xs) >= 4 else "linear", [], "~s")
    y = _y()
    tip = [
        {"field": "label", "title": "setting"},
        {"field": "x_text", "title": x_title},
        {"field": "y_text", "title": "mean"},
    ]
    layers = [
        {
            "transform": _OTHER,
            "mark": {
                "type": "point",
                "filled": True,
                "size": 30,
                "fill": "var(--context)",
                "aria": False,
            },
            "encoding": {"x": x, "y": y, "tooltip": tip},
        },
        {
            "transform": _CHOSEN,
            "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6, "aria": False},
            "encoding": {
                "x": x,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
                "stroke": _COLOUR,
            },
        },
        _seeds(x, y),
        _points(x, y, tip, 80),
    ]
    return {"height": height, "layer": layers, **_common()}


def _axis(title: str, scale: Scale, values: list[Any], format: str) -> Spec:
    if scale == "ordinal":
        return {
            "field": "x",
            "type": "ordinal",
            "axis": {"title": title, "labelAngle": 0},
            "scale": {"type": "point", "domain": values},
        }
    kinds = {
        "linear": {"type": "linear", "zero": False, "nice": False, "padding": 8},
        "log2": {"type": "log", "base": 2, "nice": False, "padding": 6},
        "log10": {"type": "log", "nice": False, "padding": 20},
    }
    axis: Spec = {"title": title, "tickCount": 5, "labelOverlap": True}
    if values:
        # Unformatted: the default rounds 0.98 to 1.
        axis |= {"values": values, "labelExpr": "datum.value"}
    else:
        axis["format"] = format
    return {"field": "x", "type": "quantitative", "axis": axis, "scale": kinds[scale]}


def _y() -> Spec:
    return {
        "field": "y",
        "type": "quantitative",
        "axis": {"title": None, "format": "~r"},
        "scale": {
            "type": "pow",
            "exponent": {"expr": "power"},
            "domainMin": 0,
            "domainMax": {"expr": "top"},
            "nice": False,
            "clamp": True,
        },
    }


def _common() -> Spec:
    return {
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": "rows", "values": []},
        "params": [{"name": "top", "value": 1}, {"name": "power", "value": 1}],
        "config": CONFIG,
    }
