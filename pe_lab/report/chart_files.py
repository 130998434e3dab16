"""The charts of the report as files for a paper: ``pe-lab report format=pdf``."""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap

import orjson

from pe_lab.common.errors import UsageError
from pe_lab.common.files import read_file, replace_file
from pe_lab.inspection.data import Inspection
from pe_lab.inspection.page import whole_chart
from pe_lab.report.charts import Spec
from pe_lab.report.figures import figure
from pe_lab.report.page import Part
from pe_lab.report.pictures import breakdown_map, drawn, heat_map
from pe_lab.store.digests import digest_of

RECORD = "charts.json"
"""Name and SHA-256 of each file that was written: only these are overwritten."""

Draw = Callable[[], bytes]


def charts(parts: Sequence[Part], inspections: Sequence[Inspection], form: str) -> dict[str, Draw]:
    """File name -> what draws it: the heat map and each group of charts of every section, a map of
    errors by tag and split, and each inspection."""
    specs: dict[str, Callable[[], Spec]] = {}
    for part in parts:
        section = part.section
        specs[f"{section.title} heat map"] = partial(heat_map, section)
        for group in part.groups:
            specs[f"{section.title} {group.name}"] = partial(figure, section, group, "error")
            if group.name.startswith("by-") and group.name != "by-length":
                name = f"{section.title} {group.name} map"
                specs[name] = partial(breakdown_map, section, group)
    for inspection in inspections:
        name = f"{inspection.task} {inspection.pe} seed{inspection.seed} inspection"
        if name in specs:  # of another setting
            name = f"{inspection.task} {inspection.pe} {inspection.path.name} inspection"
        specs[name] = partial(inspection_figure, inspection)
    return {
        re.sub(r"[^\w.]+", "-", name) + f".{form}": partial(_draw, spec, form)
        for name, spec in specs.items()
    }


def _draw(spec: Callable[[], Spec], form: str) -> bytes:
    return drawn(spec(), form)


def inspection_figure(inspection: Inspection) -> Spec:
    """The chart of an inspection under its title, with the first head, map and query chosen."""
    caption = wrap(inspection.summary, 110)
    title = {"text": inspection.heading, "subtitle": caption, "anchor": "start"}
    return {**whole_chart(inspection), "title": title, "background": "#fff"}


def write_charts(charts: dict[str, Draw], folder: Path) -> None:
    """Draw all of them into ``folder``.

    Raises:
        UsageError: a file of that name was not written by this function, or was changed since.
        OSError: a file cannot be written.
    """
    record = _record(folder)
    for name in charts:
        path = folder / name
        if path.exists() and digest_of(path.read_bytes()) != record.get(name):
            raise UsageError(
                f"{path} was not written by pe-lab report, or was changed since, and is left as "
                "it is: move it away or choose another folder with out="
            )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, draw in charts.items():
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
