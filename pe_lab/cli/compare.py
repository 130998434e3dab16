"""``pe-lab compare``: our runs beside published numbers, and paired tests of two encodings.

    pe-lab compare                                     every number of published.yaml
    pe-lab compare task=flipflop pe=cope where=".."    filters as in pe-lab results
    pe-lab compare a=cope b=rope task=flipflop         paired tests over the seeds that both have
    pe-lab compare pe=cope,rope                        both; format=csv: published numbers alone

format=table, csv, json, markdown or latex, runs_dir=runs, file=FILE and --config-dir FOLDER as in
pe-lab results. Runs on which a suite chose the learning rate are left out: it was chosen by their
errors.
"""

from collections.abc import Sequence
from typing import Any, Self

import polars as pl
from pydantic import model_validator

from pe_lab.core.errors import UsageError
from pe_lab.core.options import parse, without_config_dir
from pe_lab.results.leaderboard.entries import tuning
from pe_lab.results.paired import paired
from pe_lab.results.presentation.comparisons import (
    VERDICT,
    commands,
    comparison_tables,
    paired_tables,
)
from pe_lab.results.presentation.formats import Format, print_tables
from pe_lab.results.presentation.tables import left_out_note
from pe_lab.results.published import Published, compared, published
from pe_lab.results.selection import FileOptions, selected


class CompareOptions(FileOptions):
    """The keys of ``pe-lab compare``."""

    command = "compare"

    a: str | None = None
    b: str | None = None
    format: Format = "table"

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.a is None) != (self.b is None):
            raise ValueError("compare: a and b go together, a=cope b=rope")
        return self


def show(words: Sequence[str]) -> None:
    """Print the comparison with the published numbers, or the paired tests of ``a`` and ``b``.

    Raises:
        UsageError: a wrong option, or ``a`` and ``b`` share no seed in equal settings.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(CompareOptions, rest)
    runs, form = selected(options, config_dir), options.format
    if options.a is not None and options.b is not None:
        left = left_out_note(tuning(runs).filter(pl.col("pe").is_in([options.a, options.b])))
        try:
            tests = paired(runs, options.a, options.b)
        except UsageError as error:
            raise UsageError("; ".join([str(error), *left])) from None
        print_tables(form, paired_tables(tests), tests, runs, left, {})
        return
    filters = {key: options.values(key) for key in ("task", "pe")}
    numbers = [
        number
        for number in published()
        if all(not values or getattr(number, key) in values for key, values in filters.items())
    ]
    table = compared(runs, numbers)
    # Without a run of ours a number is only in the notes, unless it was selected.
    shown = pl.col("verdict") != "not run"
    if filters["task"]:
        shown = pl.lit(True)
    elif filters["pe"]:
        shown = pl.col("recipe").is_not_null()
    both = filters["pe"] if len(filters["pe"]) == 2 and form != "csv" else []
    left = left_out_note(_left_out(runs, numbers, both))
    tables, notes = comparison_tables(table.filter(shown)), [*left, *commands(table)]
    facts: dict[str, Any] = {"verdict": VERDICT}
    if not numbers:
        selection = " ".join(f"{key}={','.join(v)}" for key, v in filters.items() if v)
        none = f"no published number matches {selection}: see pe_lab/results/published.yaml"
        notes = [none, *left]
    if both:
        try:
            tests = paired(runs, *both)
        except UsageError as error:
            notes.append(str(error))
        else:
            tables += paired_tables(tests)
            facts["paired"] = tests.to_dicts()
    print_tables(form, tables, table, runs, notes, facts)


def _left_out(runs: pl.DataFrame, numbers: Sequence[Published], both: list[str]) -> pl.DataFrame:
    """The tuning runs that match one of these numbers, or could be paired."""
    beside, left = {(number.task, number.pe) for number in numbers}, tuning(runs)
    pairs = left.select("task", "pe").iter_rows()
    kept = [(task, pe) in beside or pe in both for task, pe in pairs]
    return left.filter(pl.Series(kept, dtype=pl.Boolean))
