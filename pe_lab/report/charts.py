"""The charts of a section by Altair: error by split, against keys, by bucket; curves; cost.

Colours are variables of the page's style sheet: light, dark and a file for a paper need one
specification.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, Literal

import altair as alt
import polars as pl

from pe_lab.core.metrics import COSTS, IN_DOMAIN, metric_name
from pe_lab.core.output import printable
from pe_lab.report.data import Section, bands, override, task_keys
from pe_lab.results.table import breakdowns, curves, text

Spec = dict[str, Any]
COLOURS = [f"var(--c{n})" for n in range(1, 9)]
SHAPES = [
    "circle", "square", "triangle-up", "diamond",
    "cross", "triangle-down", "triangle-right", "triangle-left",
]  # fmt: skip
CONFIG: Spec = {
    "background": None,
    "font": "inherit",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)", "titleColor": "var(--muted)", "titleFontWeight": "normal",
        "labelFontSize": 11, "titleFontSize": 11, "gridColor": "var(--line)",
        "domainColor": "var(--faint)", "tickColor": "var(--faint)",
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False},
    "header": {"labelColor": "var(--ink)", "labelAnchor": "start", "labelFontWeight": "bold"},
    "legend": {"labelColor": "var(--ink)", "orient": "bottom", "labelLimit": 330,
               "symbolOpacity": 1},
}  # fmt: skip
MAX_SETTINGS = 40
"""Maximum of settings in a chart; tables have all."""
MAX_STEPS = 60
"""Maximum of points in a learning curve."""
MAX_PANELS = 12
"""Maximum of panels in a chart: those with the most points."""
GUESSING = "Dashed: guessing."
BANDS = "Lines are medians over seeds, bands reach from the lowest to the highest seed."
SPREAD = "Medians over seeds; bands and bars reach from the lowest to the highest seed, a dot each."


@dataclass(frozen=True)
class Chart:
    """A drawing: its name in file names, its title and note, and its Vega-Lite specification."""

    name: str
    title: str
    note: str
    spec: Spec = field(repr=False)


def charts(section: Section) -> list[Chart]:
    """All charts of a section."""
    if section.split:
        return [error_by_length(section)]
    shown = [section.settings[rank].name for rank in section.colour_order[:MAX_SETTINGS]]
    chosen = pl.col("setting").is_in(shown)
    rows, runs = section.rows.filter(chosen), section.runs.filter(chosen)
    found = [
        _by_split(section, rows),
        *_against_keys(section, rows, runs),
        *_by_bucket(section, runs),
        *_learning(section, runs),
        _cost(section, rows, runs),
    ]
    return [chart for chart in found if chart is not None]


def error_by_length(section: Section, y_title: str = "error (%)", unit: float = 100) -> Chart:
    """The error of evaluations over the length, one line for each setting."""
    length = pl.col("split").cast(pl.Float64)
    rows = section.rows.with_columns(x=length, panel=pl.lit(""), value="error")
    x = _quantity("tokens of a sequence", rows["x"])
    spec = _panels(section, rows, x, unit=unit, y_title=y_title)
    note = f"Each line is an encoding at test time. {GUESSING} {SPREAD}"
    return Chart("against-length", "Error by length", note, spec)


def _by_split(section: Section, rows: pl.DataFrame) -> Chart:
    rows = rows.select("setting", x="split", panel=pl.lit(""), value="error")
    axis = alt.Axis(title=None, labelAngle=-30)
    x = alt.X("x:N", scale=alt.Scale(domain=list(map(printable, section.splits))), axis=axis)
    rules = [{"x": printable(at), "rule": 100 * limit} for at, limit in section.thresholds.items()]
    width = max(280, 110 * len(section.splits))
    spec = _panels(section, rows, x, mark="point", rules=rules, width=width)
    return Chart("splits", "Error by split", f"Horizontal: the threshold. {SPREAD}", spec)


def _against_keys(
    section: Section, rows: pl.DataFrame, runs: pl.DataFrame
) -> Iterator[Chart | None]:
    """For each key that splits change, the error against it: a panel for each combination of the
    other such keys."""
    tasks = {row["setting"]: task_keys(row) for row in runs.iter_rows(named=True)}
    changed: dict[str, set[str]] = {}
    for task in tasks.values():
        for split in section.ood:
            for key in override(task, split):
                changed.setdefault(key, set()).add(split)
    # Keys that change in the same splits share an axis.
    together: dict[frozenset[str], list[str]] = {}
    for key in sorted(changed):
        together.setdefault(frozenset(changed[key]), []).append(key)
    for key, *alike in together.values():
        others = [keys[0] for keys in together.values() if keys[0] != key]
        places = []
        for setting, task in tasks.items():
            for split in section.splits:
                values = {**task, **override(task, split)}
                fixed = ", ".join(f"{other} = {text(values.get(other))}" for other in others)
                if isinstance(x := values.get(key), int | float) and not isinstance(x, bool):
                    places.append((setting, split, fixed, float(x)))
        schema = {**dict.fromkeys(("setting", "split", "panel"), pl.String), "x": pl.Float64}
        at = pl.DataFrame(places, schema, orient="row")
        found = rows.with_columns(value="error").join(at, on=["setting", "split"])
        title = f"Error against {key}" + (f" (with {', '.join(alike)})" if alike else "")
        note = f"Each point is a split. {GUESSING} {SPREAD}"
        yield _lines(section, found, f"against-{key}", title, note, _quantity(key, found["x"]))


def _by_bucket(section: Section, runs: pl.DataFrame) -> Iterator[Chart | None]:
    """The error inside each split, by length, distance or depth."""
    # Buckets are 0, 1, 2, 3-4, 5-8, ..
    end = pl.col("bucket").str.extract(r"^(?:\d+-)?(-?\d+)$").cast(pl.Int64)
    guess = pl.col("split").replace_strict(section.guess, default=None, return_dtype=pl.Float64)
    unread: list[str] = []
    rows = breakdowns(runs, unread).filter(pl.col("split").is_in(section.splits))
    rows = rows.with_columns(x=end, panel="split", value="error", guess=guess)
    for kind in rows["kind"].unique(maintain_order=True):
        found = rows.filter(pl.col("kind") == kind)
        what = {"length": "tokens read"}.get(kind, kind)
        axis = alt.Axis(title=f"{what}, up to", labelAngle=0, labelOverlap=True)
        x = alt.X("x:O", scale=alt.Scale(domain=found["x"].unique().sort().to_list()), axis=axis)
        note = f"Where in its sequences a split is answered wrongly. {GUESSING} {SPREAD}"
        note += _left_out(unread)
        yield _lines(section, found, f"by-{kind}", f"Error by {what}", note, x)


def _lines(
    section: Section, rows: pl.DataFrame, name: str, title: str, note: str, x: alt.X
) -> Chart | None:
    """Of the largest panels in which a setting in colour has several x; None without one."""
    coloured = [section.settings[rank].name for rank in section.colour_order[: len(COLOURS)]]
    chosen = rows.filter(pl.col("setting").is_in(coloured))
    points = chosen.group_by("panel", "setting", maintain_order=True).agg(n=pl.col("x").n_unique())
    panels = points.group_by("panel", maintain_order=True).agg(pl.max("n"), of=pl.sum("n"))
    largest = panels.filter(pl.col("n") > 1).sort("of", descending=True, maintain_order=True)
    rows = rows.filter(pl.col("panel").is_in(largest["panel"][:MAX_PANELS].to_list()))
    return None if rows.is_empty() else Chart(name, title, note, _panels(section, rows, x))


def _learning(section: Section, runs: pl.DataFrame) -> Iterator[Chart]:
    unread: list[str] = []
    rows = curves(runs, unread)
    left_out = _left_out(unread)
    errors = {metric_name(split, "error"): split for split in section.splits}
    # The closing measurement takes the place of one at the same step.
    parts = pl.concat([_curve(rows, errors), _curve(runs, errors)])
    parts = parts.unique(["path", "panel", "x"], keep="last", maintain_order=True)
    guess = pl.col("panel").replace_strict(section.guess, return_dtype=pl.Float64)
    step = alt.X("x:Q", axis=alt.Axis(title="step", tickCount=4, format="~s"))
    if len(parts):
        note = "On a part of each evaluation set while training, at the end on all of it."
        parts = _thinned(parts).with_columns(guess=guess)
        spec = _panels(section, parts, step, dots=False)
        yield Chart("learning", "Learning curves", f"{note} {GUESSING} {BANDS}{left_out}", spec)
    losses = _curve(rows, {"train/loss": ""})
    if len(losses):
        spec = _panels(section, _thinned(losses), step, unit=1, y_title="loss (nats)", dots=False)
        note = f"Cross-entropy of the scored positions of the training batches. {BANDS}{left_out}"
        yield Chart("loss", "Training loss", note, spec)


def _left_out(unread: Sequence[str]) -> str:
    return printable("".join(f" Left out: {message}." for message in unread))


def _curve(rows: pl.DataFrame, panels: Mapping[str, str]) -> pl.DataFrame:
    """The columns of these names over the steps, a row for each number."""
    index = ["path", "setting", "step"]
    names = [name for name in panels if name in rows.columns]
    wide = rows.select(*index, pl.col(names).cast(pl.Float64))
    long = wide.unpivot(names or ["step"], index=index, variable_name="panel")
    named = long.filter(pl.col("panel").is_in(names)).drop_nulls("value")
    return named.select(
        *index[:2],
        x="step",
        panel=pl.col("panel").replace(panels),
        value=pl.col("value").cast(float),
    )


def _thinned(rows: pl.DataFrame) -> pl.DataFrame:
    """The curves at no more than MAX_STEPS steps: means over equal intervals, at their ends."""
    if rows["x"].n_unique() <= MAX_STEPS:
        return rows
    width = -(-rows["x"].max() // MAX_STEPS)  # type: ignore[operator]
    stretch = (-(-pl.col("x") // width)) * width
    return rows.group_by("path", "setting", "panel", stretch, maintain_order=True).agg(
        pl.mean("value")
    )


def _cost(section: Section, rows: pl.DataFrame, runs: pl.DataFrame) -> Chart | None:
    ood = rows.filter(pl.col("split") != IN_DOMAIN).group_by("path", "setting")
    measured = ood.agg(value=pl.col("error").mean(), null=pl.col("error").null_count())
    found = measured.filter(pl.col("null") == 0).join(runs.drop("setting"), on="path")
    costs = [key for key in COSTS if key in found.columns]
    of_setting = [pl.col(key).cast(pl.Float64).mean().over("setting") for key in costs]
    long = found.select("setting", "value", *of_setting).unpivot(
        costs, index=["setting", "value"], variable_name="panel", value_name="x"
    )
    long = long.filter(pl.col("x") > 0).with_columns(pl.col("panel").replace(COSTS))
    if long.is_empty():
        return None
    axis = alt.Axis(title=None, format=".3~s", tickCount=4, labelOverlap=True)
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False, padding=20), axis=axis)
    spec = _panels(section, long, x, mark="point", y_title="OOD mean (%)", intervals=False)
    note = "Low and to the left is better. Times compare only on one machine with equal load."
    return Chart("cost", "OOD mean against cost", f"{note} Small dots are seeds.", spec)


def _quantity(title: str, xs: pl.Series) -> alt.X:
    """An axis of numbers, logarithmic to base 2 where the largest is at least twice the least."""
    ticks = xs.unique().sort().to_list()
    wide = bool(ticks) and ticks[0] >= 1 and ticks[-1] >= 2 * ticks[0]
    kind: dict[str, Any] = {"type": "log", "base": 2} if wide else {"zero": False}
    axis = alt.Axis(title=title, labelOverlap=True, labelExpr="datum.value", values=ticks[:12])
    return alt.X("x:Q", scale=alt.Scale(nice=False, padding=8, **kind), axis=axis)


def _panels(
    section: Section,
    rows: pl.DataFrame,
    x: alt.X,
    *,
    mark: Literal["line", "point"] = "line",
    rules: Sequence[Spec] = (),
    unit: float = 100,
    y_title: str = "error (%)",
    dots: bool = True,
    intervals: bool = True,
    width: int = 280,
) -> Spec:
    """The medians of ``value`` for each ``setting``, ``panel`` and ``x``, the first eight settings
    in colour, all others in grey; ``guess`` is a dashed line.

    Args:
        rules: further lines, each at one x.
        unit: 100 for shares, which are shown in %.
        dots: whether single seeds are shown.
    """
    order = [section.settings[rank] for rank in section.colour_order]
    drawn = set(rows["setting"])
    names = {s.name: f"{s.label} (n = {len(s.seeds)})" for s in order if s.name in drawn}
    domain = list(names.values())[: len(COLOURS)]
    values: list[dict[str, Any]] = []
    found = bands(rows, ("setting", "panel", "x"), "value")
    for (setting, panel, at), band in sorted(found.items(), key=lambda item: item[0]):
        if band is None:
            continue
        at = printable(at) if isinstance(at, str) else at
        row = {"panel": printable(panel), "label": names[setting], "x": at}
        ends = band.values[0], band.values[-1]
        middle, low, high = (_short(unit * v) for v in (band.median, *ends))
        if row["label"] not in domain:
            values.append({**row, "other": middle})
            continue
        values.append({**row, "y": middle, **({"low": low, "high": high} if intervals else {})})
        if dots and band.n > 1:
            values += [{**row, "seed": _short(unit * value)} for value in band.values]
    numbers = [row[name] for row in values for name in ("y", "other", "seed") if name in row]
    top = 1.06 * max(numbers, default=1.0) or 1.0
    if "guess" in rows.columns:
        guesses = rows.group_by("panel", maintain_order=True).agg(pl.mean("guess")).drop_nulls()
        rules = [{"panel": printable(p), "rule": _short(unit * g)} for p, g in guesses.iter_rows()]
    values += [rule for rule in rules if rule["rule"] <= top]
    layers = alt.layer(*_layers(x, domain, top, y_title, mark), data=alt.NamedData("rows"))
    chart: Any = layers.properties(width=width, height=190)
    panels = list(dict.fromkeys(map(printable, rows["panel"])))
    if len(panels) > 1:
        of = {name: n for n, name in enumerate(map(printable, section.splits))}
        panels.sort(key=lambda panel: of.get(panel, 0))
        header = alt.Facet("panel:N", sort=panels, title=None)
        chart = chart.facet(header, columns=3).resolve_scale(x="independent")
    return specification(chart, values) | {"config": CONFIG}


def specification(chart: Any, rows: list[dict[str, Any]]) -> Spec:
    """The Vega-Lite of a chart of ``rows``, which Altair would copy at every step."""
    spec: Spec = chart.to_dict(validate=False)
    return spec | {"data": {"values": rows}}


def _layers(x: alt.X, domain: list[str], top: float, y_title: str, mark: str) -> list[alt.Chart]:
    """From back to front; each draws the rows that have its column."""
    y_scale = alt.Scale(type="sqrt", domainMin=0, domainMax=top, nice=False, clamp=True)

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", scale=y_scale, axis=alt.Axis(title=y_title, format="~r"))

    def of_setting(channel: Any, values: Sequence[str]) -> Any:
        scale = alt.Scale(domain=domain, range=values)
        return channel("label:N", scale=scale, legend=alt.Legend(title=None))

    colour, shape = of_setting(alt.Color, COLOURS), of_setting(alt.Shape, SHAPES)
    picked = alt.selection_point(fields=["label"], bind="legend")
    faded = alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.1))
    titles = {"y": "median", "low": "from", "high": "to"}
    tip = [alt.Tooltip(f"{name}:Q", format=".3~r", title=title) for name, title in titles.items()]
    label = alt.Tooltip("label:N", title="setting")
    base = alt.Chart()
    place: dict[str, Any] = {"x": x}
    if mark == "line":
        # A line goes on across the rows of other layers.
        rule = base.mark_rule(strokeDash=[3, 3], color="var(--faint)").encode(y=y("rule"))
        behind = base.mark_line(strokeWidth=1, color="var(--context)", invalid="filter")
        spread = base.mark_area(opacity=0.08, invalid="filter")
        line = base.mark_line(strokeWidth=2, aria=False, invalid="filter")
        lines = [line.encode(x=x, y=y("y"), color=colour, opacity=faded)]
    else:
        rule = base.mark_tick(size=90, color="var(--muted)").encode(x=x, y=y("rule"))
        behind = base.mark_point(filled=True, size=24, color="var(--context)")
        spread, lines = base.mark_rule(opacity=0.6), []
        if x.to_dict()["type"] == "nominal":  # type: ignore[call-overload]
            place["xOffset"] = alt.XOffset("label:N", scale=alt.Scale(domain=domain))
    dot = base.mark_circle(size=14, opacity=0.5, aria=False)
    point = base.mark_point(filled=True, size=30 if mark == "line" else 60).add_params(picked)
    return [
        rule,
        behind.encode(x=x, y=y("other"), detail="label:N", tooltip=[label]),
        spread.encode(**place, y=y("low"), y2="high:Q", color=colour),
        *lines,
        dot.encode(**place, y=y("seed"), color=colour),
        point.encode(
            **place, y=y("y"), color=colour, shape=shape, opacity=faded, tooltip=[label, *tip]
        ),
    ]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def figure(section: Section, chart: Chart) -> Spec:
    """The chart as a figure for a paper, with what the section says below its title."""
    return on_white(chart, f"{section.title}. {chart.note} {section.legend}")


def on_white(chart: Chart, caption: str) -> Spec:
    """The chart with its title and a caption, on white."""
    title = {"text": chart.title, "subtitle": wrap(caption.strip(), 110), "anchor": "start"}
    return {**chart.spec, "title": title, "config": {**CONFIG, "background": "#fff"}}
