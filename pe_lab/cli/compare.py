"""``pe-lab compare``: our runs beside published numbers, and paired tests of two encodings.

    pe-lab compare                                     every number of published.yaml
    pe-lab compare task=flipflop pe=cope where=".."    filters as in pe-lab results
    pe-lab compare a=cope b=rope task=flipflop         paired tests over the seeds that both have
    pe-lab compare pe=cope,rope                        both

format=table, csv, json, markdown or latex, runs_dir=runs and file=FILE as in pe-lab results.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import polars as pl
from pydantic import model_validator

from pe_lab.common.errors import UsageError
from pe_lab.common.options import parse
from pe_lab.results.output import Format, print_tables
from pe_lab.results.paired import paired
from pe_lab.results.paired_tables import paired_tables
from pe_lab.results.plan_runs import planned_runs_note
from pe_lab.results.published import published
from pe_lab.results.published_tables import RULE, commands, comparison_tables
from pe_lab.results.selection import FileOptions, selected
from pe_lab.results.vs_published import compared


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
    options = parse(CompareOptions, words)
    runs, form = selected(options), options.format
    if options.a is not None and options.b is not None:
        tests = paired(runs, options.a, options.b)
        note = _planned(options, runs, tests)
        print_tables(form, paired_tables(tests), tests, runs, [note], {})
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
    tables, notes = comparison_tables(table.filter(shown)), commands(table)
    facts: dict[str, Any] = {"interval": RULE}
    if not numbers:
        selection = " ".join(f"{key}={','.join(v)}" for key, v in filters.items() if v)
        notes = [f"no published number matches {selection}: see pe_lab/results/published.yaml"]
    if len(filters["pe"]) == 2 and form != "csv":
        try:
            tests = paired(runs, *filters["pe"])
        except UsageError as error:
            notes.append(str(error))
        else:
            tables += paired_tables(tests)
            facts["paired"] = tests.to_dicts()
            notes.append(_planned(options, runs, tests))
    print_tables(form, tables, table, runs, notes, facts)


def _planned(options: CompareOptions, runs: pl.DataFrame, tests: pl.DataFrame) -> str:
    """Whether a plan named the runs of the settings that were paired before they began."""
    settings = [*tests["setting_a"], *tests["setting_b"]]
    sides = runs.filter(pl.col("state") == "finished", pl.col("setting").is_in(settings))
    return planned_runs_note(sides["path"], Path(options.runs_dir))
