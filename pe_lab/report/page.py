"""The report as one HTML file: an overview, and for each task its table and charts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pe_lab.core.errors import PeLabError, counted
from pe_lab.core.metrics import threshold
from pe_lab.explain.record import read_diagnoses
from pe_lab.explain.verdict import Diagnosed, DiagnosedCell, leading_cells
from pe_lab.report.charts import (
    CONFIG,
    Chart,
    chart_of_attention,
    charts_of_task,
)
from pe_lab.report.html import drawn, rendered
from pe_lab.results.format import Table
from pe_lab.results.groups import Names, grouped, named
from pe_lab.results.table import FACTS, splits_of, text
from pe_lab.results.tables import Layout, tables, tuning_note
from pe_lab.store.run_folder import RunFolder

if TYPE_CHECKING:
    from pe_lab.explain.inspect import Inspection

GENERATOR = "pe-lab report"
MOST_VALUES, MOST_INSPECTED = 12, 4
"""Values listed for a key, and runs inspected by default."""


@dataclass(frozen=True)
class Section:
    """What the page says of one task.

    Args:
        sentence: the answer first.
        shared, differing: key -> its values, as on the command line.
        best: the run of the first seed of the table's first two rows.
    """

    task: str
    sentence: str
    table: Table
    charts: Sequence[Chart]
    shared: Mapping[str, str]
    differing: Mapping[str, str]
    best: Sequence[str]


def sections_of(runs: pl.DataFrame) -> tuple[list[Section], list[str]]:
    """A section for each task, and a message for each file that cannot be read.

    Args:
        runs: as ``read_runs`` gives them.
    """
    finished = runs.filter(pl.col("state") == "finished")
    if finished.is_empty():
        return [], []
    groups, names = grouped(finished), named(finished)
    why, unread = recorded(finished)
    differs = pl.col("setting").replace_strict(names.labels, default="", return_dtype=pl.String)
    label = pl.format("{} {}", "pe", differs.fill_null("")).str.strip_chars()
    sections = []
    for table in tables(groups, names, Layout()):
        task = table.title.partition(":")[0]
        part = finished.filter(pl.col("task") == task)
        table = replace(table, notes=(*table.notes, *tuning_note(part)))
        shared, differing = _settings(part)
        order = [_label_of(row) for row in table.frame.iter_rows(named=True)]
        firsts = part.with_columns(label=label).sort("seed").unique("label", keep="first")
        path_of = dict(firsts.select("label", "path").iter_rows())
        setting = f"Setting: {names.shared.get(task) or 'the defaults of the task'}."
        limits = {split: threshold(task, split) for split in splits_of(part)}
        charts = [
            replace(chart, note=f"{chart.note} {setting}")
            for chart in charts_of_task(part, label, order, limits)
        ]
        table = _with_verdicts(table, part, names, why)
        sections.append(Section(task, sentence_of(table), table, charts, shared,
                                differing, [path_of[one] for one in order[:2]]))  # fmt: skip
    return sections, unread


def recorded(runs: pl.DataFrame) -> tuple[dict[str, DiagnosedCell], list[str]]:
    """Setting -> its diagnosed seeds on their leading split, and a message for each record that
    cannot be read.

    Args:
        runs: finished ones, as ``table.read_runs`` gives them.
    """
    found, unread = list[Diagnosed](), list[str]()
    for path, task, setting, seed in runs.select("path", "task", "setting", "seed").iter_rows():
        try:
            diagnoses = read_diagnoses(RunFolder(Path(path)))
            found += [Diagnosed(Path(path), task, setting, seed, one) for one in diagnoses]
        except PeLabError as error:
            unread.append(f"{error}; until then it has no verdict")
    return {setting: cell for (_, setting), cell in leading_cells(found).items()}, unread


def _label_of(row: Mapping[str, Any]) -> str:
    return f"{row['pe']} {_setting(row)}".strip()


def _setting(row: Mapping[str, Any]) -> str:
    return "" if row.get("setting") in (None, "-") else str(row["setting"])


def _with_verdicts(
    table: Table, runs: pl.DataFrame, names: Names, why: Mapping[str, DiagnosedCell]
) -> Table:
    """The table with what ``pe-lab why`` found of each row, if it found anything."""
    words = {
        (pe, names.labels.get(setting) or ""): f"{why[setting].split}: {why[setting].verdict.cause}"
        for pe, setting in runs.select("pe", "setting").unique().iter_rows()
        if setting in why
    }
    if not words:
        return table
    column = [words.get((row["pe"], _setting(row))) for row in table.frame.iter_rows(named=True)]
    frame = table.frame.with_columns(why=pl.Series(column, dtype=pl.String))
    return replace(table, frame=frame, formats={**table.formats, "why": str})


def sentence_of(table: Table) -> str:
    """Which rows generalise best, in words."""
    rows = list(table.frame.iter_rows(named=True))
    several = [row for row in rows if row["n"] > 1]
    rates = [(row["ood_rate"], row) for row in several if row["ood_rate"] is not None]
    if not several:
        return f"{counted(len(rows), 'setting')} of one seed: a success rate needs several seeds."
    if not rates:
        return "No setting of several seeds is measured on every split out of domain."
    highest = max(rate for rate, _ in rates)
    if highest == 0:
        return "No encoding generalises to a split out of domain."
    best = [row for rate, row in rates if rate == highest]
    first, seeds = [_label_of(row) for row in best], [row["n"] for row in best]
    n = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    shown = ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")
    return (
        f"Highest success rate, averaged over the splits out of domain: {shown}, "
        f"{100 * highest:.0f} % of {n} seeds."
    )


def overview_of(sections: Sequence[Section]) -> Table:
    """Encodings by tasks: the mean success rate out of domain of the setting with most seeds, which
    a row names by what tells it from the others of its task."""
    rows = [
        {"encoding": _label_of(row), "task": section.task, "rate": row["ood_rate"]}
        for section in sections
        for row in section.table.frame.sort("n", descending=True, maintain_order=True)
        .unique("pe", keep="first", maintain_order=True)
        .iter_rows(named=True)
    ]
    rates = pl.DataFrame(rows, {"encoding": pl.String, "task": pl.String, "rate": pl.Float64})
    n, mean = pl.len().over("encoding"), pl.col("rate").mean().over("encoding").fill_null(0.0)
    rates = rates.sort(n, mean, descending=True, maintain_order=True)
    tasks = [section.task for section in sections]
    frame = rates.pivot("task", index="encoding", values="rate").select("encoding", *tasks)
    formats: dict[str, Callable[[Any], str]] = {
        "encoding": str,
        **dict.fromkeys(tasks, lambda rate: f"{100 * rate:.0f} %"),
    }
    note = "The success rate, averaged over the splits out of domain. -: not run on all of them."
    return Table(frame, formats, "Success rates by encoding and task", (note,))


def shades_of(table: Table) -> list[list[float | None]]:
    """The success rate of each cell, from 0 to 1, which is its colour; None: it has none."""

    def shade(cell: Any) -> float | None:
        if isinstance(cell, dict):
            return cell["k"] / cell["n"] if cell["n"] and cell["k"] is not None else None
        return cell if isinstance(cell, float) else None

    columns = [table.frame[name] for name in table.formats or table.frame.columns]
    return [[shade(series[row]) for series in columns] for row in range(len(table.frame))]


def inspect_best(sections: Sequence[Section], paths: Sequence[str] | None) -> list[Inspection]:
    """Inspections of the first wrong answer of these runs on their worst split; None: of the best
    rows of the tasks, those that can be inspected.

    Raises:
        PeLabError: a run of ``paths`` cannot be inspected.
    """
    chosen = list(paths or ())
    for section in sections if paths is None else ():
        chosen += [path for path in section.best if (Path(path) / "checkpoint.pt").exists()]
    inspections = []
    for path in chosen if paths is not None else chosen[:MOST_INSPECTED]:
        # Imported here: this is the only part that needs torch.
        from pe_lab.explain.inspect import inspect_run

        try:
            inspections.append(inspect_run(path, split=None, sample=None))
        except PeLabError:
            if paths is not None:
                raise
    return inspections


def render_report(
    sections: Sequence[Section],
    runs: pl.DataFrame,
    inspections: Sequence[Inspection],
    unread: Sequence[str],
    title: str,
    command: str,
) -> str:
    """The HTML of the page.

    Args:
        runs: all of them, unfinished ones too.
        command: that made the page.
    """
    unfinished = runs.filter(pl.col("state") != "finished")
    return rendered(
        "report.html",
        generator=GENERATOR,
        title=title,
        command=command,
        made=datetime.now().astimezone(),
        versions=f"pe-lab {metadata.version('pe-lab')}, Python {sys.version.split()[0]}",
        sections=sections,
        overview=overview_of(sections) if len(sections) > 1 else None,
        states=states(runs),
        unread=unread,
        unfinished=unfinished.select("path", "state", "step", "steps", "message").rows(),
        attention=[chart_of_attention(one) for one in inspections],
        shades=shades_of,
    )


def states(runs: pl.DataFrame) -> str:
    """``61 finished, 1 failed``."""
    counts = Counter(sorted(runs["state"]))
    return ", ".join(f"{n} {state}" for state, n in counts.most_common())


def _settings(runs: pl.DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """The keys that all runs share, and those in which they differ, each with its values."""
    shared, differing = {}, {}
    for key in runs.columns:
        if key in FACTS or "/" in key or key.startswith(("tracker", "runs_dir")):
            continue
        values = Counter(map(text, runs[key].drop_nulls().to_list()))
        if len(values) == 1 and values.total() == len(runs):
            shared[key] = next(iter(values))
        elif values:
            listed = [f"{value} x{n}" for value, n in values.most_common(MOST_VALUES)]
            more = len(values) - len(listed)
            differing[key] = ", ".join([*listed, *([f"{more} more"] if more > 0 else [])])
    return shared, differing


def draw_chart(chart: Chart, heading: str, form: str) -> bytes:
    """A chart with its title and its note as a file for a paper: svg, png or pdf, on white."""
    title = {"text": f"{heading} {chart.title}".strip(), "subtitle": chart.note, "anchor": "start"}
    return drawn({**chart.spec, "title": title, "config": {**CONFIG, "background": "#fff"}}, form)
