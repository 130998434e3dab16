"""The report as one HTML file: tables as HTML, charts as Vega-Lite, nothing loaded from outside."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pe_lab.common.console import percent
from pe_lab.common.vega import vega_script
from pe_lab.core.metrics import COSTS, TITLED
from pe_lab.report.bands import Band
from pe_lab.report.facts import Counts, Settings
from pe_lab.report.inspected import Inspected
from pe_lab.report.panels import Group, Point
from pe_lab.report.sections import Section, Setting

DEEP = 0.73
"""Cells of a darker shade have light text; the same number as in tables.js."""
SCRIPTS = ("filters.js", "tables.js", "charts.js")


@dataclass(frozen=True)
class Part:
    """The content of one task's section."""

    section: Section
    groups: Sequence[Group]
    drawn: int
    settings: Settings | None
    """None for evaluations: the settings are in the section of the task."""


@dataclass(frozen=True)
class Page:
    """The content of the page."""

    title: str
    command: str
    made: datetime
    with_versions: str
    parts: Sequence[Part]
    states: Mapping[str, int]
    unfinished: Sequence[Mapping[str, Any]]
    unread: Sequence[str]
    provenance: Mapping[str, Counts]
    inspected: Inspected


def templates() -> Environment:
    """The templates of this folder."""
    return Environment(
        loader=PackageLoader("pe_lab.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(page: Page) -> str:
    """The HTML of the page."""
    environment = templates()
    environment.filters |= {
        "shade": shade,
        "number": number,
        "percent": percent,
        "breakable": breakable,
    }
    source = resources.files("pe_lab.report")
    scripts = [vega_script(), *((source / name).read_text("utf-8") for name in SCRIPTS)]
    if page.inspected.script:
        scripts.append(page.inspected.script)
    found = [part.section for part in page.parts]
    trained = [section for section in found if not section.split]
    evaluated = [section for section in found if section.split]
    return environment.get_template("page.html").render(
        page=page,
        parts=page.parts,
        tasks=list(dict.fromkeys(section.task for section in found)),
        encodings=sorted({setting.pe for section in found for setting in section.settings}),
        splits=list(dict.fromkeys(s for section in trained for s in section.splits)),
        lengths=sorted({s for section in evaluated for s in section.splits}, key=int),
        style=Markup((source / "page.css").read_text("utf-8") + page.inspected.style),
        scripts=[Markup(script) for script in scripts],
        hashes=" ".join(script_hash(script) for script in scripts),
        rows=Markup(_data(page.parts)),
        reference=reference,
        deep=DEEP,
        metrics=TITLED,
        costs=COSTS.values(),
    )


def reference(section: Section) -> float:
    """The error of the darkest colour: that of guessing, or the largest error if greater."""
    means = [band.mean for s in section.settings for band in s.cells["error"].values() if band]
    return max([*means, *(guess for guess in section.guess.values() if guess)], default=1.0) or 1.0


def shade(band: Band, most: float) -> float:
    """The shade of a cell, from 0 to 1; the square root makes small errors distinguishable."""
    return round(math.sqrt(max(0.0, band.mean) / most), 3)


def breakable(name: str) -> Markup:
    """A name with line breaks allowed after underscores."""
    return escape(name).replace("_", Markup("_<wbr>"))


def number(value: float) -> str:
    """Three significant digits, with thousands separators."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def script_hash(script: str) -> str:
    """The source of a script for the page's Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _data(parts: Sequence[Part]) -> str:
    """The data of the scripts as JSON, escaped so that no value can end the script element."""
    plain = orjson.dumps([_section(part) for part in parts]).decode()
    for character in "<>&\u2028\u2029":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return plain


def _section(part: Part) -> dict[str, Any]:
    section = part.section
    return {
        "task": section.task,
        "split": section.split,
        "splits": section.splits,
        "reference": reference(section),
        "order": section.colour_order,
        "settings": [_setting(setting, section) for setting in section.settings],
        "groups": [_group(group) for group in part.groups],
    }


def _setting(setting: Setting, section: Section) -> dict[str, Any]:
    return {
        "pe": setting.pe,
        "label": setting.label,
        "seeds": len(setting.seeds),
        "ood": {metric: _seeds(band) for metric, band in setting.ood.items()},
        "cost": [_rounded(band.mean if band else None) for band in setting.cost.values()],
        "cells": {
            metric: [_seeds(cells.get(split)) for split in section.splits]
            for metric, cells in setting.cells.items()
        },
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "title": group.title,
        "metrics": group.metrics,
        "panels": [
            {
                "title": panel.title,
                "split": panel.split,
                "guess": _rounded(panel.guess),
                "spec": panel.spec,
                "points": [_point(point) for point in panel.points],
            }
            for panel in group.panels
        ],
    }


def _point(point: Point) -> list[Any]:
    """setting, x, split, bands by metric; without those at the end that are None."""
    if point.bands is not None:
        bands = {metric: _band(band) for metric, band in point.bands.items()}
        return [point.setting, point.x, point.split, bands]
    return [point.setting, point.x, *([point.split] if point.split else [])]


def _band(band: Band | None) -> list[float | None] | None:
    """mean, low, high, least, most, n."""
    if band is None:
        return None
    spread = (band.mean, band.low, band.high, band.least, band.most)
    return [*map(_rounded, spread), band.n]


def _seeds(band: Band | None) -> list[Any] | None:
    """mean, low, high, least, most, n, median, rate and the values of all seeds."""
    if band is None:
        return None
    rest = [_rounded(band.median), band.rate, list(map(_rounded, band.values))]
    return [*(_band(band) or ()), *rest]


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    # Whole numbers are a digit or two shorter.
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
