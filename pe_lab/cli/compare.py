"""``pe-lab compare``: our runs beside published numbers, and paired tests of two encodings.

    pe-lab compare                                     every number of published.yaml
    pe-lab compare task=flipflop pe=cope where=".."    filters as in pe-lab results
    pe-lab compare a=cope b=rope task=flipflop         paired tests over the seeds that both have;
                                                       of the results that ship where you have no
                                                       run of either

format=table, csv, json, markdown or latex, runs_dir=runs and file=FILE as in pe-lab results. Runs
on which a suite chose the learning rate are left out: it was chosen by their errors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.core.console import percent
from pe_lab.core.errors import UsageError
from pe_lab.core.options import Line
from pe_lab.results.format import Format, OutputFormat, Table, print_tables
from pe_lab.results.paired import paired, paired_entries
from pe_lab.results.published import compared, published
from pe_lab.results.table import runs_of, selected, tuning, unfinished_notes
from pe_lab.results.tables import shares_text, tuning_text
from pe_lab.suite.rows import read_shipped
from pe_lab.suite.scores import score
from pe_lab.suite.suite import DEFAULT, load_suite

LISTED = 8
"""Most seeds whose values are listed."""
VERDICT = "Verdict: the side of our seeds on which the published number lies."


def show(
    line: Line,
    *,
    runs_dir: Path = Path("runs"),
    file: Path | None = None,
    where: str | None = None,
    a: str | None = None,
    b: str | None = None,
    format: OutputFormat = "table",
    **filters: str,
) -> None:
    """Print the comparison with the published numbers, or the paired tests of ``a`` and ``b``.

    Raises:
        UsageError: a wrong option, or ``a`` and ``b`` share no seed in equal settings.
    """
    if (a is None) != (b is None):
        raise UsageError("compare: a and b go together, a=cope b=rope")
    none = a is not None and file is None and not runs_dir.is_dir()
    runs = runs_of([]) if none else selected(line, runs_dir, where, filters, file)
    left_out = tuning(runs)
    notes = [f"left out: {tuning_text(left_out)}"] if len(left_out) else []
    if a is not None and b is not None:
        shipped = pl.DataFrame() if file or where else _shipped_runs(runs, a, b, filters)
        rows = paired_entries(shipped, a, b) if len(shipped) else paired(runs, a, b)
        said = f"You have no run of {a} or {b}: these are runs of suite {DEFAULT} that ship."
        notes += [said] * bool(len(shipped))
        parts = rows.partition_by("task", "setting_a", "setting_b", maintain_order=True)
        tables, facts = [_paired_table(part) for part in parts], {}
    else:
        chosen = {key: filters[key].split(",") for key in ("task", "pe") if key in filters}
        numbers = [n for n in published() if all(n[key] in chosen[key] for key in chosen)]
        rows = compared(runs, numbers)
        # Without a run of ours a number is only in the notes, unless it was selected.
        measured = pl.col("verdict") != "not run"
        shown = rows if chosen else rows.filter(measured)
        parts = shown.partition_by("source", "where", "task", maintain_order=True)
        tables, facts = [_published_table(part) for part in parts], {"verdict": VERDICT}
        notes += _commands(rows) if len(rows) else ["no published number of these"]
    print_tables(format, tables, rows, [*notes, *unfinished_notes(runs)], facts)


def _shipped_runs(runs: pl.DataFrame, a: str, b: str, filters: Mapping[str, str]) -> pl.DataFrame:
    """Return the scored runs of these tasks that ship; none where one of the entries has none, a
    run of one's own is of either, or a filter is of another key."""
    suite = load_suite()
    rows = read_shipped(suite)
    scored = score(suite, rows, rows.clear()).rows.filter("counts")
    tasks = filters.get("task", ",".join(scored["task"].unique())).split(",")
    scored = scored.filter(pl.col("task").is_in(tasks))
    own = runs.filter(pl.col("state") == "finished", pl.col("pe").is_in([a, b]))
    usable = own.is_empty() and {*filters} <= {"task"} and {a, b} <= {*scored["entry"]}
    return scored if usable and a != b else scored.clear()


def _published_table(part: pl.DataFrame) -> Table:
    """Return the table of one source."""
    first, rated = part.row(0, named=True), part.filter(pl.col("k").is_not_null(), pl.col("n") > 1)
    notes = [
        VERDICT if part["n"].count() else "",
        f"Threshold: {shares_text(rated, 'threshold')}." if len(rated) else "",
        f"Assumed: {first['reading']}." if first["reading"] else "",
    ]
    metric = "sequences with an error" if first["metric"] == "error_seq" else "error"
    ours = pl.struct("n", "k", "median", "values")
    frame = part.with_columns(ours=ours)
    words = ("pe", "size", "split", "verdict", "differs", "theirs_printed")
    formats: dict[str, Format] = {name: str for name in words if any(frame[name])}
    formats |= {"ours": ours_text, "theirs_seeds": str, "n": str}
    headings = {
        **{"pe": "encoding", "theirs_printed": "theirs, %", "ours": "ours, %"},
        **{"theirs_seeds": "their seeds", "n": "our seeds", "differs": "ours for theirs"},
    }
    title = f"{first['task']}: {metric} in %, {first['source']}, {first['where']}"
    return Table(frame, formats, title, tuple(filter(None, notes)), headings)


def ours_text(cell: Mapping[str, Any]) -> str:
    """Write our seeds: ``2/3 1.00: 0.0 1.00 22.0``, k of n, the median and each of them (above
    ``LISTED`` the lowest and the highest). One seed alone is its value."""
    if not cell["n"]:
        return "-"
    values = list(map(percent, cell["values"]))
    if cell["n"] == 1:
        return values[0]
    ends = [percent(end(cell["values"])) for end in (min, max)]
    each = " ".join(values) if len(values) <= LISTED else "..".join(ends)
    rate = "median" if cell["k"] is None else f"{cell['k']}/{cell['n']}"
    return f"{rate} {percent(cell['median'])}: {each}"


def _commands(rows: pl.DataFrame) -> list[str]:
    """Return what runs the published settings that no run of ours has."""
    other = pl.col("verdict").str.starts_with("other")
    left = rows.filter((pl.col("verdict") == "not run") | other, pl.col("recipe").is_not_null())
    lines = []
    for (task, source, recipe), part in left.group_by(
        "task", "source", "recipe", maintain_order=True
    ):
        missing = ", ".join(part["pe"].unique(maintain_order=True))
        lines.append(
            f"{task}, {source}, {missing}: pe-lab -m experiment=paper/{recipe} runs the "
            f"published setting, experiment=small/{recipe} a small one"
        )
    return lines


def _paired_table(part: pl.DataFrame) -> Table:
    """Return the table of one pair of settings."""
    first = max(part.rows(named=True), key=lambda row: row["n"])
    a, b = first["a"], first["b"]
    seeds = ",".join(map(str, first["seeds"]))
    notes = [f"Seeds {seeds}; settings {first['setting_a']} and {first['setting_b']}."]
    if first["n"] > 1:
        notes.append(f"Threshold: {shares_text(part, 'threshold')}.")
        notes.append(f"p: sign test, at least {first['p_least']:.3g}; Holm: over the splits.")
    else:
        notes.append("With one seed nothing can be tested.")
    frame = part.with_columns(
        **{
            side: pl.struct(n="n", k=f"k_{side}", median=f"median_{side}", values=f"errors_{side}")
            for side in "ab"
        },
        difference=100 * pl.col("difference"),
    )
    formats: dict[str, Format] = {"split": str, "n": str, "a": ours_text, "b": ours_text}
    formats |= {"difference": "{:+.2f}".format, "lower_a": str, "lower_b": str}
    formats |= dict.fromkeys(("p", "p_holm"), "{:.3g}".format)
    headings = {"a": a, "b": b, "difference": "median difference", "p_holm": "Holm"}
    headings |= {"lower_a": f"{a} lower", "lower_b": f"{b} lower"}
    title = f"{first['task']}: error in %, {a} against {b}, seed by seed"
    differs = f", {first['differs']}" if first["differs"] else ""
    return Table(frame, formats, f"{title}{differs}", tuple(notes), headings)
