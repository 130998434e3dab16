"""Sections of recorded evaluations: one for each task and split, by length."""

import polars as pl

from pe_lab.common.metrics import TABLED
from pe_lab.evaluation.record import TRAINED
from pe_lab.report.charts import Scale, lines
from pe_lab.report.panels import Group, Panel, Point
from pe_lab.report.sections import Section, sections
from pe_lab.report.series import charted_settings
from pe_lab.results.evaluation_tables import scales
from pe_lab.results.evaluations import recorded, shown_encoding, title
from pe_lab.results.labels import labels

NOTE = (
    "Measured by pe-lab eval after training: runs as trained, and with other encodings in "
    "place of the trained one. Lengths are in tokens read."
)


def evaluated(runs: pl.DataFrame) -> tuple[list[Section], list[str]]:
    """The sections, and a message for each file that cannot be read. A setting is one of the runs
    with an encoding, the splits are the lengths and their mean is that over lengths.

    Args:
        runs: as ``frame.read_runs`` gives them.
    """
    rows, unread = recorded(runs)
    if rows.is_empty():
        return [], unread
    trained = pl.col("encoding") == TRAINED
    cells = rows.sort("tokens", maintain_order=True).select(
        "path", "seed", *TABLED,
        task=title("length"),
        split=pl.col("tokens").cast(pl.String),
        pe=pl.when(trained).then("pe").otherwise("encoding"),
        setting=pl.format("{} {}", "setting", shown_encoding()),
        trained_as=pl.col("setting"),
        role=pl.when(trained).then(pl.lit("as trained"))
        .otherwise(pl.format("in place of {}", "pe")),
    )  # fmt: skip
    names = labels(runs.filter(pl.col("path").is_in(rows["path"].unique().to_list())))
    differs = {
        setting: f"{role} {names.get(trained_as, '')}".strip()
        for setting, role, trained_as in cells.select("setting", "role", "trained_as").iter_rows()
    }
    notes = {
        ", ".join(map(str, pair)): " ".join([NOTE, *(f"{k[0].upper()}{k[1:]}." for k in scales(r))])
        for pair, r in rows.group_by("task", "split")
    }
    evaluated_runs = cells.unique(["path", "task", "setting"], maintain_order=True)
    return sections(evaluated_runs, cells, differs, notes), unread


def against_length(section: Section) -> list[Group]:
    """The error against the length, one line per charted setting."""
    points = [
        Point(rank, int(length), band, length)
        for rank, setting in charted_settings(section).items()
        for length in section.splits
        if (band := setting.cells["error"].get(length)) is not None
    ]
    xs = sorted({point.x for point in points})
    scale: Scale = "log2" if len(xs) > 1 else "ordinal"
    guesses = [guess for guess in section.guess.values() if guess is not None]
    panel = Panel(
        "all lengths",
        lines("tokens of a sequence", "error (%)", scale, xs),
        points,
        guess=sum(guesses) / len(guesses) if guesses else None,
    )
    note = "Each line is an encoding at test time."
    return [Group("against-length", "Error against length", note, [panel])]
