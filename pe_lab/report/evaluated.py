"""What finished runs were evaluated on since: a section for each task and split, by length."""

import polars as pl

from pe_lab.evaluation.recorded import recorded
from pe_lab.evaluation.tables import as_runs, scales, titled
from pe_lab.report.charts import Scale, lines
from pe_lab.report.panels import Group, Panel, Point
from pe_lab.report.sections import Section, sections
from pe_lab.report.series import drawn
from pe_lab.results.frame import by_split

NOTE = (
    "Measured by pe-lab eval after training: runs as trained, and with other encodings in the "
    "place of the trained one. Lengths are in tokens that are read."
)


def evaluated(runs: pl.DataFrame) -> tuple[list[Section], list[str]]:
    """The sections, in which a setting is one of the runs with an encoding, the splits are the
    lengths and their mean is that over lengths; and what could not be read.

    Args:
        runs: as ``frame.read_runs`` gives them.
    """
    cells, unread = recorded(runs)
    if cells.is_empty():
        return [], unread
    frame, told = as_runs(cells)
    trained = pl.format("{} (trained)", "in place of") == pl.col("encoding")
    frame = frame.with_columns(
        pe=pl.when(trained).then(pl.col("in place of")).otherwise(pl.col("encoding")),
        place=pl.when(trained).then(pl.lit("as trained")).otherwise(
            pl.format("in place of {}", "in place of")
        ),
        own=pl.col("setting"),
        setting=pl.format("{} {}", "setting", "encoding"),
    )  # fmt: skip
    named = frame.select("setting", "place", "own").unique().iter_rows()
    words = {setting: f"{place} {told.get(own, '')}".strip() for setting, place, own in named}
    by_length = by_split(frame).sort(pl.col("split").cast(pl.Int64), maintain_order=True)
    notes = {
        titled(*pair): " ".join([NOTE, *(f"{k[0].upper()}{k[1:]}." for k in scales(part))])
        for pair, part in cells.group_by("task", "split")
    }
    return sections(frame, by_length, words, notes), unread


def against_length(section: Section) -> list[Group]:
    """The error against the length, a line for each setting that is drawn."""
    points = [
        Point(rank, int(length), band, length)
        for rank, setting in drawn(section).items()
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
