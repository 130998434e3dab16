"""The tables of ``pe-lab compare`` and ``pe-lab extrapolate``: published numbers beside ours, and
paired tests. docs/method.md defines what they show."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

import polars as pl

from pe_lab.core.console import percent
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.presentation.tables import CLUSTERED, CLUSTERS, thresholds
from pe_lab.results.published import Extrapolated, extrapolated

LISTED = 8
"""Most seeds whose values are listed."""
MEDIAN = 3
"""Fewest seeds whose median is shown."""
VERDICT = "Verdict: the side of our seeds on which the published number lies."


def seeds_text(cell: Mapping[str, Any]) -> str:
    """Our seeds: ``2/3‡ 1.00: 0.0 1.00 22.0``, k of n, ‡ where they fall into two clusters, the
    median of three or more, and each of them (above ``LISTED`` the lowest and the highest). One
    seed alone is its value.

    Args:
        cell: ``n``, ``k`` (None: no threshold), ``median``, ``clusters`` and ``values``, ascending.
    """
    n, values = cell["n"], cell["values"]
    each = " ".join(map(percent, values))
    if n > LISTED:
        each = f"{percent(values[0])}..{percent(values[-1])}"
    if n == 1:
        return each
    mark = CLUSTERS if cell["clusters"] else ""
    rate = "" if cell["k"] is None else f"{cell['k']}/{n}{mark}"
    if n >= MEDIAN:
        rate = f"{rate or f'median{mark}'} {percent(cell['median'])}"
    return f"{rate}: {each}" if rate else mark + each


def comparison_tables(table: pl.DataFrame) -> list[Table]:
    """A table for each one of a source. What differs in the protocol of every row is in the
    caption, the rest in footnotes."""
    parts = table.partition_by("source", "where", "task", maintain_order=True)
    return [_published(part.rows(named=True)) for part in parts]


def _published(rows: list[dict[str, Any]]) -> Table:
    differences = [row["differs"].split(", ") for row in rows if row["n"] is not None]
    common = [d for d in differences[0] if all(d in o for o in differences)] if differences else []
    footnotes: dict[str, int] = {}
    lines = []
    for row in rows:
        others = ", ".join(d for d in row["differs"].split(", ") if d not in common)
        number = f"[{footnotes.setdefault(others, len(footnotes) + 1)}]" if others else ""
        lines.append(
            {
                "encoding": row["pe"],
                "size": row["size"],
                "split": row["split"],
                "verdict": row["verdict"],
                "protocol": number,
                "theirs, %": row["theirs_printed"],
                "seeds of ours, %": seeds_text(row) if row["n"] else "-",
                "mean of ours, %": _mean(row),
                "seeds: theirs, ours": f"{row['theirs_seeds'] or '?'}, {row['n'] or 0}",
            }
        )
    shown = [name for name in lines[0] if any(line[name] for line in lines)]
    first = rows[0]
    rated = [(r["split"], r["threshold"]) for r in rows if r["k"] is not None and r["n"] > 1]
    limits = pl.DataFrame(rated, ["split", "threshold"], orient="row") if rated else None
    caption = [
        VERDICT if differences else "",
        "" if limits is None else f"Threshold: {thresholds(limits)}.",
        CLUSTERED if any(row["clusters"] for row in rows) else "",
        f"Assumed: {first['reading']}." if first["reading"] else "",
        f"Protocol, ours for theirs: {', '.join(common)}." if any(common) else "",
        *(f"[{number}] {note}." for note, number in footnotes.items()),
    ]
    metric = "sequences with an error" if first["metric"] == "error_seq" else "error"
    return Table(
        title=f"{first['task']}: {metric} in %, {first['source']}, {first['where']}",
        columns=shown,
        words=len([name for name in shown if "theirs" not in name and "ours" not in name]),
        rows=[[Cell(line[name]) for name in shown] for line in lines],
        caption=" ".join(filter(None, caption)),
    )


def commands(table: pl.DataFrame) -> list[str]:
    """What runs the published settings that no run of ours has."""
    other = pl.col("verdict").str.starts_with("other")
    left = table.filter((pl.col("verdict") == "not run") | other)
    lines = []
    for (task, source, recipe), part in left.group_by(
        "task", "source", "recipe", maintain_order=True
    ):
        if recipe is None:
            lines.append(
                f"{task}, {source}: {len(part)} published numbers of encodings put in place of the "
                f"trained one: pe-lab extrapolate task={task} sets them beside ours"
            )
        else:
            missing = ", ".join(part["pe"].unique(maintain_order=True))
            lines.append(
                f"{task}, {source}, {missing}: pe-lab -m experiment=paper/{recipe} runs the "
                f"published setting, experiment=small/{recipe} a small one"
            )
    return lines


def _mean(row: dict[str, Any]) -> str:
    """Empty for one seed: it is no mean."""
    if not row["n"] or row["n"] == 1:
        return ""
    return f"{100 * row['ours']:.2f}"


def paired_tables(tests: pl.DataFrame) -> list[Table]:
    """A table for each pair of settings."""
    parts = tests.partition_by("task", "setting_a", "setting_b", maintain_order=True)
    return [_paired(part, tests) for part in parts]


def _paired(part: pl.DataFrame, tests: pl.DataFrame) -> Table:
    rows = part.rows(named=True)
    first = max(rows, key=lambda row: row["n"])
    n, a, b = first["n"], first["a"], first["b"]
    several = tests.filter(task=first["task"])["setting_a"].n_unique() > 1
    chosen = f", {first['differs']}" if several and first["differs"] else ""
    seeds = ",".join(map(str, first["seeds"]))
    caption = f"Seeds {seeds}; settings {first['setting_a']} and {first['setting_b']}. "
    if n <= 1:
        few = "One seed" if n else "No split that both were measured on"
        caption += f"{few}: nothing can be tested."
    else:
        marked = part.select(pl.any_horizontal("clusters_a", "clusters_b").any()).item()
        caption += (
            f"Threshold: {thresholds(part)}. {f'{CLUSTERED} ' if marked else ''}"
            f"p: sign test, at least {first['p_least']:.3g}; Holm: over the splits."
        )
    return Table(
        title=f"{first['task']}: error in %, {a} against {b}, seed by seed{chosen}",
        columns=["split", a, b, "median difference", f"{a} lower", f"{b} lower", "p", "Holm"],
        words=1,
        rows=[_cells(row, n) for row in rows],
        caption=caption,
    )


def _cells(row: dict[str, Any], most: int) -> list[Cell]:
    """A line of the table.

    Args:
        most: seeds of the table; shown where those of the row are fewer.
    """
    if not row["n"]:
        return [Cell(text) for text in (row["split"], *["n/a"] * 3, *["-"] * 4)]
    lower = [f"{row[f'lower_{side}']}/{row['n']}" for side in "ab"]
    ps = ["-" if row[p] is None else f"{row[p]:.3g}" for p in ("p", "p_holm")]
    split = row["split"] if row["n"] == most else f"{row['split']} n={row['n']}"
    numbers = (f"{100 * row['difference']:+.2f}", *lower, *ps)
    return [Cell(split), _side(row, "a"), _side(row, "b"), *map(Cell, numbers)]


def _side(row: dict[str, Any], side: str) -> Cell:
    """``7/12‡ 1.05``: k of n, and the median."""
    errors = row[f"errors_{side}"]
    if len(errors) == 1:
        return Cell(percent(errors[0]))
    mark = CLUSTERS if row[f"clusters_{side}"] else ""
    rate = f"{row[f'k_{side}']}/{row['n']}{mark}"
    return Cell(f"{rate} {percent(row[f'median_{side}'])}")


TEXT = {
    IN_DOMAIN: "as trained",
    "repeated_x8": "8 x, repeated",
    "long_x8": "8 x, not repeated",
}
NEEDLE = {IN_DOMAIN: "as trained", "long_x4": "4 x", "long_x8": "8 x", "long_x16": "16 x"}
SPLITS = {"text": TEXT, "needle": NEEDLE}
"""The splits of a task's table; of text in the order of Su's figures."""
THEIRS = {IN_DOMAIN: IN_DOMAIN, "repeated_x8": "repeated", "long_x8": "other"}
"""Their names in published.yaml."""
ORDER = ("rerope + logn", "ntk_mixed + logn", "ntk_fixed", "rope", "pi")
"""Su's order beyond the trained length, best first."""

Place = tuple[str, str]
"""A row and a split."""
Accuracies = Mapping[Place, Sequence[float]]
"""A share for each seed, in the same order everywhere."""


def published_accuracy(row: Extrapolated, split: str) -> float | None:
    """Su's accuracy in %, None where his table has none."""
    number = row.published.get(THEIRS[split])
    return None if number is None else round(100 * (1 - number.error), 2)


def extrapolation_tables(measured: Accuracies, task: str = "text") -> list[Table]:
    """The accuracies; of text beside Su's, and whether each order of his is found."""
    splits, beside_su = SPLITS[task], task == "text"
    columns, caption = ["encoding"], "no source has this table."
    if beside_su:
        caption = (
            "Su: 100 M parameters trained at 512 tokens on another text with another vocabulary: "
            "compare orders, not numbers."
        )
    for name in splits.values():
        columns += [name, "Su"] if beside_su else [name]
    lines = []
    for row in extrapolated():
        cells = [row.pe]
        for split in splits:
            theirs = published_accuracy(row, split) if beside_su else None
            cells.append(_percent(measured[row.pe, split]))
            cells += ["-" if theirs is None else f"{theirs:.2f}"] if beside_su else []
        lines.append([Cell(text) for text in cells])
    caption = f"mean ± standard deviation over seeds; {caption}"
    table = Table("accuracy in %", columns, 1, lines, caption)
    return [table, _orders(measured)] if beside_su else [table]


def _orders(measured: Accuracies) -> Table:
    rows = {row.pe: row for row in extrapolated()}
    lines = []
    for better, worse in _compared():
        theirs = [published_accuracy(rows[row], split) for row, split in (better, worse)]
        assert theirs[0] is not None
        assert theirs[1] is not None
        sign = 1 if theirs[0] > theirs[1] else -1
        pairs = zip(measured[better], measured[worse], strict=True)
        gaps = [100 * (ours - others) for ours, others in pairs]
        agreeing = sum(gap * sign > 0 for gap in gaps)
        mean = fmean(gaps)
        verdict = "agrees" if mean * sign > 0 else "disagrees" if mean else "no difference"
        same = better[1] == worse[1]
        where = TEXT[worse[1]] if same else f"{TEXT[better[1]]} > {TEXT[worse[1]]}"
        lines.append(
            [
                Cell(f"{better[0]} > {worse[0]}" if same else better[0]),
                Cell(where),
                Cell(f"{theirs[0] - theirs[1]:+.2f}"),
                Cell(f"{mean:+.2f}"),
                Cell(f"{verdict}, {agreeing} of {len(gaps)} seeds"),
            ]
        )
    caption = "differences of accuracy in %; a seed counts where its difference has Su's sign."
    return Table("Su's orders", ["order", "where", "Su", "ours", "verdict"], 2, lines, caption)


def _compared() -> list[tuple[Place, Place]]:
    """Pairs of which the first is the greater in Su's table."""
    beyond = list(TEXT)[1:]
    falls: list[tuple[Place, Place]] = [(("rope", IN_DOMAIN), ("rope", s)) for s in beyond]
    orders: list[tuple[Place, Place]] = [
        ((better, split), (worse, split)) for split in beyond for better, worse in pairwise(ORDER)
    ]
    return falls + orders


def _percent(shares: Sequence[float]) -> str:
    found = [100 * share for share in shares]
    return f"{fmean(found):.2f}" + (f" ± {stdev(found):.2f}" if len(found) > 1 else "")
