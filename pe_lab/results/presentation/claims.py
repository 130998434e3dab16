"""The tables of ``pe-lab plan``: preregistered claims and their tests."""

from collections.abc import Sequence
from typing import Any

from pe_lab.common.console import percent
from pe_lab.results.claim_tests import Decided, learned
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.presentation.leaderboard import UNLEARNED

NAMED = 4
"""Most encodings that a row names beside the one claimed to be better."""


def claims_table(decided: Sequence[Decided]) -> Table:
    """A row for each claim."""
    lines = []
    for one in decided:
        a, *others = one.claim.encodings
        rows = [row for row in one.rows.iter_rows(named=True) if row["n_a"] and row["n_b"]]
        p: Any = one.rows["p"].max()
        counts = ""
        if rows:
            least, most = (
                f"{row[f'k_{side}']}/{row[f'n_{side}']}"
                for side, row in (
                    ("a", min(rows, key=lambda row: row["k_a"] / row["n_a"])),
                    ("b", max(rows, key=lambda row: row["k_b"] / row["n_b"])),
                )
            )
            counts = f"{least}, others ≤ {most}"
        of = ", ".join(others) if len(others) <= NAMED else f"{len(others)} others"
        fit = {row["b"] for row in rows if learned(row, "b")}
        tasks = "; ".join(f"{t}: {', '.join(splits)}" for t, splits in one.claim.tasks.items())
        said = one.verdict + (", exploratory" if one.exploratory else "")
        words = (one.name, f"{a} over {of}", tasks, counts,
                 f"{len(fit)} of {len(others)}", _p_text(p), said)  # fmt: skip
        lines.append([Cell(word) for word in words])
    head = ("claim", "encodings", "task: splits", "seeds that generalise",
            "others that fit", "largest p", "verdict")  # fmt: skip
    caption = (
        "Lowest success rate of the encoding claimed to be better, and the highest of the others. "
        "Others that fit: those of which half of the seeds fit the task. claim=NAME: each test."
    )
    return Table("preregistered claims", head, len(head), lines, caption)


def details_table(one: Decided) -> Table:
    """A row for each test of a claim, errors in %."""
    lines = []
    for row in one.rows.iter_rows(named=True):
        sides = [
            f"{row[f'k_{side}']}/{row[f'n_{side}']}{'' if learned(row, side) else UNLEARNED}, "
            f"median {percent(row[f'median_{side}'])}"
            for side in "ab"
        ]
        p = _p_text(row["p"])
        task = f"{row['task']}, {row['split']} (up to {percent(row['threshold'])} %)"
        words = (task, row["a"], sides[0], row["b"], sides[1], p, row["verdict"])
        lines.append([Cell(word) for word in words])
    named = {"fisher": "Fisher's exact test", "mann_whitney": "Mann-Whitney"}[one.claim.test]
    head = ("task, split (threshold)", "a", "a generalises", "b", "b generalises", "p", "verdict")
    caption = (
        f"p: {named}, one-sided; supported at {one.claim.level:g} or less. {UNLEARNED}: fewer than "
        "half of these seeds fit the task in domain."
    )
    return Table(f"{one.name}: {one.claim.hypothesis}", head, len(head), lines, caption)


def _p_text(p: Any) -> str:
    return "" if p is None else f"{p:.2g}"
