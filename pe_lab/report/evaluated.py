"""Sections of recorded evaluations: one for each task and split, by length."""

import polars as pl

from pe_lab.core.metrics import TABLED
from pe_lab.evaluation.record import TRAINED
from pe_lab.report.charts import Scale, lines
from pe_lab.report.error_vs_key import mean_guess
from pe_lab.report.panels import Group, Panel, Point
from pe_lab.report.sections import Section, in_charts, section
from pe_lab.report.series import charted_settings
from pe_lab.results.evaluations import recorded, shown_encoding
from pe_lab.results.labels import labels
from pe_lab.results.presentation.evaluations import scales

NOTE = (
    "Measured by pe-lab eval after training: runs as trained, and with other encodings in "
    "place of the trained one. Lengths are in tokens read."
)


def evaluated(runs: pl.DataFrame, where: str | None = None) -> tuple[list[Section], list[str]]:
    """The sections, and a message for each file that cannot be read. A setting is one of the runs
    with an encoding, the splits are the lengths and their mean is that over lengths.

    Args:
        runs: as ``frame.read_runs`` gives them.
        where: the condition that selected the runs.
    """
    rows, unread = recorded(runs)
    if rows.is_empty():
        return [], unread
    names = labels(runs.filter(pl.col("path").is_in(rows["path"].unique().to_list())))
    return evaluated_sections(rows, runs, names, where), unread


def evaluated_sections(
    rows: pl.DataFrame, runs: pl.DataFrame, names: dict[str, str], where: str | None = None
) -> list[Section]:
    """The sections of these evaluations.

    Args:
        rows: as ``results.evaluations.recorded`` or ``evaluate`` gives them.
        runs: the runs that they are of, with any others.
        names: the keys in which each setting of the runs differs.
        where: the condition that selected the runs.
    """
    trained = pl.col("encoding") == TRAINED
    cells = rows.sort("tokens", maintain_order=True).join(
        runs.select("path", "step"), on="path", how="left", maintain_order="left"
    ).select(
        "path", "task", "seed", "step", *TABLED,
        of_split=pl.col("split"),
        split=pl.col("tokens").cast(pl.String),
        pe=pl.when(trained).then("pe").otherwise("encoding"),
        setting=pl.format("{} {}", "setting", shown_encoding()),
        trained_as=pl.col("setting"),
        role=pl.when(trained).then(pl.lit("as trained"))
        .otherwise(pl.format("in place of {}", "pe")),
    )  # fmt: skip
    differs = {
        setting: f"{role} {names.get(trained_as, '')}".strip()
        for setting, role, trained_as in cells.select("setting", "role", "trained_as").iter_rows()
    }
    found = []
    for (task, split), part in cells.group_by("task", "of_split", maintain_order=True):
        of_split = rows.filter(pl.col("task") == task, pl.col("split") == split)
        measured = runs.filter(pl.col("path").is_in(of_split["path"].unique().to_list()))
        below = [*scales(of_split), *in_charts(measured, where)]
        note = " ".join([NOTE, *(f"{text[0].upper()}{text[1:]}." for text in below)])
        runs_of = part.unique(["path", "setting"], maintain_order=True)
        found.append(section(runs_of, part, differs, str(split), note))
    return found


def against_length(section: Section) -> list[Group]:
    """The error against the length, one line per charted setting."""
    points = [
        Point(rank, int(length), split=length)
        for rank, setting in charted_settings(section).items()
        for length in section.splits
        if setting.cells["error"].get(length) is not None
    ]
    xs = sorted({point.x for point in points})
    scale: Scale = "log2" if len(xs) > 1 else "ordinal"
    panel = Panel(
        "all lengths",
        lines("tokens of a sequence", scale, xs),
        points,
        guess=mean_guess(section, list(section.splits)),
    )
    note = "Each line is an encoding at test time."
    return [Group("against-length", "Error against length", note, [panel])]
