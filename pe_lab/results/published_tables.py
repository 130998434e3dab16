"""The tables of ``pe-lab compare``, and the commands for what has not been run."""

from typing import Any

import polars as pl

from pe_lab.results.cell_text import CLUSTERED, rate_intervals, thresholds
from pe_lab.results.formats import Cell, Table
from pe_lab.results.verdicts import RULE, SEEDS, UNRATED_SEEDS, seeds_text

INTERVAL = (
    "Mean of ours: in parentheses its 95 % interval (Student's t), where the seeds differ and do "
    "not fall into two clusters."
)


def comparison_tables(table: pl.DataFrame) -> list[Table]:
    """A table for each one of a source. What differs in the protocol of every row is in the
    caption, the rest in footnotes."""
    parts = table.partition_by("source", "where", "task", maintain_order=True)
    return [_table(part.rows(named=True)) for part in parts]


def _table(rows: list[dict[str, Any]]) -> Table:
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
    caption = [RULE] if differences else []
    if any(row["n"] and row["n"] > 1 for row in rows):
        caption.append(SEEDS if any(row["k"] is not None for row in rows) else UNRATED_SEEDS)
        caption.append(INTERVAL)
    caption += _rates(rows)
    if any(row["clusters"] for row in rows):
        caption.append(CLUSTERED)
    if first["reading"]:
        caption.append(f"Assumed: {first['reading']}.")
    if any(common):
        caption.append(f"Protocol, ours for theirs: {', '.join(common)}.")
    caption += [f"[{number}] {note}." for note, number in footnotes.items()]
    metric = "sequences with an error" if first["metric"] == "error_seq" else "error"
    return Table(
        title=f"{first['task']}: {metric} in %, {first['source']}, {first['where']}",
        columns=shown,
        words=len([name for name in shown if "theirs" not in name and "ours" not in name]),
        rows=[[Cell(line[name]) for name in shown] for line in lines],
        caption=" ".join(caption),
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


def _rates(rows: list[dict[str, Any]]) -> list[str]:
    """The thresholds of k/n and the intervals of each that occurs."""
    found = [row for row in rows if row["k"] is not None and row["n"] > 1]
    if not found:
        return []
    limits = pl.DataFrame([(row["split"], row["threshold"]) for row in found],
                          ["split", "threshold"], orient="row")  # fmt: skip
    intervals = rate_intervals((row["k"], row["n"]) for row in found)
    return [f"Threshold: {thresholds(limits)}.", f"{intervals}."]


def _mean(row: dict[str, Any]) -> str:
    """Empty for one seed: it is no mean."""
    if not row["n"] or row["n"] == 1:
        return ""
    if row["low"] is None or row["sd"] == 0:
        return f"{100 * row['ours']:.2f}"
    low, high = (100 * min(1.0, max(0.0, row[name])) for name in ("low", "high"))
    return f"{100 * row['ours']:.2f} ({low:.2f}..{high:.2f})"
