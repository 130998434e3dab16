"""The tables of a report: what generalises on which task, and the settings of one task."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from textwrap import wrap
from typing import Any

import altair as alt

from pe_lab.core.console import percent
from pe_lab.core.metrics import COSTS
from pe_lab.report.charts import Spec, specification
from pe_lab.report.data import Band, Section, Setting
from pe_lab.results.verdicts import leading, seeds_text

NOT_RUN = "missing"
UNLEARNED = "unlearned"
LIMIT = 4
"""Maximum of names in a sentence; the rest are counted."""


@dataclass(frozen=True)
class Cell:
    """A cell of a grid.

    Args:
        text, below: in the cell, and in small print below.
        share: the place of its colour from 0, the worst, to 1, the best; None without a colour.
        kind: ``missing`` (not run) or ``unlearned``, which have colours of their own.
        order: what its column is sorted by.
        title: shown on hovering.
    """

    text: str
    below: str = ""
    share: float | None = None
    kind: str = ""
    order: float | None = None
    title: str = ""


@dataclass(frozen=True)
class Column:
    """A column: its name, notes below it, the id of what it links to, and its group."""

    name: str
    notes: Sequence[str] = ()
    link: str = ""
    group: str = ""


@dataclass(frozen=True)
class Row:
    """A row: its name, what is below the name, and a cell for each column."""

    name: str
    below: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Grid:
    """A table of coloured cells."""

    title: str
    caption: str
    corner: str
    columns: Sequence[Column]
    rows: Sequence[Row] = field(default_factory=list)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of the columns, each with its number of columns; empty without groups."""
        found = [(name, len(list(of))) for name, of in groupby(c.group for c in self.columns)]
        return found if any(name for name, _ in found) else []


def overview(found: Sequence[Section]) -> Grid:
    """Encodings by tasks: how many seeds generalise, and the success rate as colour."""
    encodings = {s.pe: s.mark for section in found for s in section.settings}
    chosen = [{s.pe: s for s in section.representatives} for section in found]
    rows = [
        Row(
            f"{pe}{mark}",
            "",
            [_rate_cell(of.get(pe), s) for of, s in zip(chosen, found, strict=True)],
        )
        for pe, mark in encodings.items()
    ]

    def order(row: Row) -> tuple[int, float, str]:
        shares = [cell.share or 0.0 for cell in row.cells if cell.order is not None]
        return -len(shares), -sum(shares) / max(1, len(shares)), row.name

    legend = next((section.legend for section in found if section.legend), "")
    return Grid(
        "Success rate by encoding and task",
        "k/n: seeds at or below the threshold on every OOD split. In %, and as colour: the success "
        f"rate averaged over these splits. Grey: not learned in domain. Hatched: not run. {legend}",
        "encoding",
        [Column(section.task, link=f"task-{n}") for n, section in enumerate(found, 1)],
        sorted(rows, key=order),
    )


def _rate_cell(setting: Setting | None, section: Section) -> Cell:
    rate = None if setting is None else setting.rate(section.ood)
    if setting is None or rate is None:
        return Cell("", kind=NOT_RUN, title="not run" if setting is None else "no OOD split")
    text = f"{setting.everywhere}/{len(setting.seeds)}"
    title = ", ".join("{} {}/{}".format(split, *setting.count(split)) for split in section.ood)
    title = f"{setting.label}: {title}"
    if not setting.learned:
        return Cell(text, "not learned", kind=UNLEARNED, order=rate, title=title)
    return Cell(text, f"{100 * rate:.0f} %", round(rate, 3), order=rate, title=title)


def sentence(section: Section) -> str:
    """What generalises on a task, to where, and for how many seeds."""
    found = section.representatives
    learned = [setting for setting in found if setting.learned]
    unlearned = [setting.pe for setting in found if not setting.learned]
    end = f" {_names(unlearned)} did not learn it in domain." if unlearned else ""
    if not learned:
        return "No encoding learned the task in domain."
    if not section.ood:
        return f"No OOD split was measured.{end}"
    reached = {setting.pe: _reached(setting, section) for setting in learned}
    most = max(map(len, reached.values()), default=0)
    if not most:
        return f"No encoding generalises to an OOD split in most of its seeds.{end}"
    best = max(
        (setting for setting in learned if len(reached[setting.pe]) == most),
        key=lambda setting: setting.rate(section.ood) or 0,
    )
    splits = reached[best.pe]
    alike = [pe for pe, of in reached.items() if of == splits]
    k, n = min((best.count(split) for split in splits), key=lambda count: count[0] / count[1])
    total = len(section.ood)
    where = f"{_names(splits)} ({most} of {total} OOD splits)"
    if most == total > 1:
        where = f"all {total} OOD splits"
    seeds = f"at least {k} of {n}" if k < n else "both" if n == 2 else f"all {n}"
    seeds = f"{seeds} seeds succeed on each" if n > 1 else "one seed was trained"
    if len(alike) > 1:
        seeds = f"{best.pe}: {seeds}"
    others = sum(bool(of) for of in reached.values()) - len(alike)
    rest = f" {others} other{'s' * (others > 1)} reach{'es' * (others == 1)} fewer."
    verb = "generalises" if len(alike) == 1 else "generalise"
    return f"{_names(alike)} {verb} to {where}; {seeds}.{rest * bool(others)}{end}"


def _reached(setting: Setting, section: Section) -> list[str]:
    """The OOD splits on which most seeds of a setting are at or below the threshold."""
    counts = {split: setting.count(split) for split in section.ood}
    return [split for split, (k, n) in counts.items() if 2 * k > n]


def _names(names: Sequence[str]) -> str:
    shown = (
        list(names) if len(names) <= LIMIT + 1 else [*names[:LIMIT], f"{len(names) - LIMIT} more"]
    )
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def table(section: Section) -> Grid:
    """The settings of a section by its splits, with the mean over the OOD splits and the cost."""
    columns = [Column(split, _notes(section, split)) for split in section.splits]
    columns.append(Column("mean", ["over lengths"]) if section.split else Column("OOD mean"))
    costs = {} if section.split else COSTS
    judged = any(setting.why for setting in section.settings)
    columns += [Column("why", ["verdict"])] if judged else []
    columns = [Column("seeds"), *columns, *(Column(title) for title in costs.values())]
    shown = [band for s in section.settings for band in (*s.cells.values(), s.ood) if band]
    rated = any(band.k is not None and band.n > 1 for band in shown)
    caption = "Error in %"
    caption += (
        ": k/n seeds at or below the threshold and the median; below, the " if rated else ", "
    )
    caption += "mean over seeds. "
    if any(band.clusters for band in shown):
        caption += "‡: the seeds form two clusters. "
    if judged:
        caption += "why: the verdict of pe-lab why, defined in docs/why.md. "
    return Grid(
        f"Error by {'length' if section.split else 'split'}, {section.title}",
        f"{caption}Colour: the mean error. {section.legend}".strip(),
        "setting",
        columns,
        [_row(setting, section, costs, judged) for setting in section.settings],
    )


def _notes(section: Section, split: str) -> list[str]:
    notes = list(section.changes.get(split, ()))
    if (limit := section.thresholds.get(split)) is not None:
        notes.append(f"threshold {100 * limit:.3g} %")
    if (guess := section.guess.get(split)) is not None:
        notes.append(f"guessing {100 * guess:.3g} %")
    return notes


def _row(
    setting: Setting, section: Section, costs: Sequence[str] | dict[str, str], judged: bool
) -> Row:
    absent = "n/a"
    cells = [
        _error_cell(setting.cells.get(split), section, absent if split in setting.cells else "")
        for split in section.splits
    ]
    cells.append(_error_cell(setting.ood, section, absent if section.ood else ""))
    cells += [_verdict_cell(setting)] if judged else []
    for key in costs:
        band = setting.cost.get(key)
        cells.append(
            Cell("" if band is None else number(band.mean), order=band.mean if band else None)
        )
    seeds = Cell(f"{len(setting.seeds)}", order=len(setting.seeds))
    return Row(f"{setting.pe}{setting.mark}", setting.differs, [seeds, *cells])


def _verdict_cell(setting: Setting) -> Cell:
    if not setting.why:
        return Cell("")
    one = leading(setting.why)
    below = f"{one.split} {seeds_text(one)}"
    return Cell(one.verdict.cause, below, title="\n".join(c.sentence for c in setting.why))


def _error_cell(band: Band | None, section: Section, absent: str) -> Cell:
    if band is None:
        return Cell(absent, order=1e9)
    # The square root tells small errors apart.
    share = round(1 - min(1.0, max(0.0, band.mean) / section.worst) ** 0.5, 3)
    if not band.rate:
        return Cell(percent(band.mean), "", share, order=band.mean)
    text = f"{band.rate} {percent(band.median)}"
    return Cell(text, percent(band.mean), share, order=band.mean)


def number(value: float) -> str:
    """Three significant digits, with thousands separators."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def picture(grid: Grid) -> Spec:
    """The grid as a chart of its own, without the columns that have no colours."""
    groups = list(dict.fromkeys(column.group for column in grid.columns))
    values = [
        {"row": f"{row.name} {row.below}".strip(), "column": column.name, "group": column.group,
         **asdict(cell)}
        for row in grid.rows
        for column, cell in zip(grid.columns, row.cells, strict=True)
        if cell.share is not None or cell.kind or cell.text == "n/a"
    ]  # fmt: skip
    names = list(dict.fromkeys(value["row"] for value in values))
    shown = {value["column"] for value in values}
    columns = [column.name for column in grid.columns if column.name in shown]
    place: dict[str, Any] = {
        "x": alt.X("column:N", sort=columns, title=None, axis=alt.Axis(orient="top", labelAngle=0)),
        "y": alt.Y("row:N", sort=names, title=None, axis=alt.Axis(labelLimit=600)),
    }
    colours = ["var(--worst)", "var(--middle)", "var(--best)"]
    scale = alt.Scale(domain=[0, 0.5, 1], range=colours, interpolate="lab")
    shade = alt.Color("share:Q", scale=scale, legend=None)
    cells = alt.Chart().encode(**place)
    layers = alt.layer(
        cells.transform_filter("datum.share !== null").mark_rect().encode(color=shade),
        cells.transform_filter(f"datum.kind === '{UNLEARNED}'").mark_rect(color="var(--context)"),
        cells.transform_filter(f"datum.kind === '{NOT_RUN}'").mark_text(color="#bbb", text="╱╱╱"),
        cells.mark_text(fontSize=12, dy=-5).encode(text="text:N"),
        cells.mark_text(fontSize=10, dy=8).encode(text="below:N"),
        data=alt.NamedData("rows"),
    ).properties(width=alt.Step(76), height=alt.Step(34))
    chart: Any = layers
    if grid.groups:
        chart = layers.facet(column=alt.Column("group:N", sort=groups, title=None), spacing=8)
        chart = chart.resolve_scale(x="independent")
    lines = wrap(f"{grid.title}. {grid.caption}", max(60, 12 * len(columns)))
    title = alt.TitleParams(lines, anchor="start", fontWeight="normal", fontSize=12)
    return of_grid(specification(chart.properties(title=title), values), names, len(columns))


def of_grid(spec: Spec, rows: Iterable[str], columns: int) -> Spec:
    """A grid on white, with room for a font that is a sixth wider than the one it is made for: a
    letter of 12 pixels takes 6. The title is wider than a grid of few columns."""
    axis = {"domain": False, "ticks": False, "labelFontSize": 12, "grid": False}
    left, right = max(map(len, rows), default=0), 60 if columns < 8 else 0
    return spec | {
        "padding": {"left": 5 + left, "right": 5 + right, "top": 5, "bottom": 5},
        "config": {"background": "#fff", "font": "inherit", "view": {"stroke": None}, "axis": axis},
    }
