"""``make leaderboard``: docs/leaderboard.md with its picture, and docs/suite-v2_1.md.

In docs/*.text.md braces are replaced by a number of the runs of suite v2.1 that ship:
``{fire+conv recall}`` for k/n seeds that generalise to every scored split of recall, ``{fire
recall learned}`` for those that learn it (``both``: and generalise), ``{fire recall p}`` and
``{fire recall p_holm}`` for the test of both columns, ``{fire recall long_x2}`` for k/n on one
split, with ``median`` for the median error, ``{fire recall rate}`` for the learning rate, ``{fire
recall cause}`` for the verdict of ``pe-lab why`` and ``{fire recall restored fewer keys}`` for what
an intervention restores, ``{pairs}`` for how many pairs Holm's correction is over. ``{v2 fire
recall}`` is of suite v2, and so are the others with ``v2``. ``{fire recall long_x2 tuning 0.006}``
is the least and largest error of tuning runs at a rate (``score``: of scored runs), ``{x2 fire
recall}`` how many seeds learn, and do both, at twice the steps, ``{wide-gap-fire brackets}`` the
test of a claim, ``{text long_x4 all}`` the correlation of success with the error on text over all
entries (or those of a name in ``ENTRIES``; ``n``: how many, ``p``: of its test; with ``v2``: of
success in v2). ``<!-- first -->`` and others become tables.
"""

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl

from docs import facts
from docs.markdown import write
from pe_lab.cli.leaderboard import first_table
from pe_lab.report.leaderboard import draw_lengths
from pe_lab.suite.claims import decide_claims, read_claims
from pe_lab.suite.rows import SCHEMA, read_shipped, shipped_file
from pe_lab.suite.scores import Scores, compare_with_text, score
from pe_lab.suite.suite import load_suite
from pe_lab.suite.tables import (
    claims_table,
    columns_table,
    compare_columns,
    entries_tables,
    is_shown,
)
from pe_lab.suite.verdicts import shipped_diagnoses, verdicts_of

PAGE = facts.ROOT / "docs" / "leaderboard.md"
PAGES = PAGE, PAGE.with_name("suite-v2_1.md")
PLAN = shipped_file("v2_1.claims.yaml")

# Entries over which the correlation with errors on text is given.
OTHERS = ~is_shown(["learned", "sinusoidal", "rope"])
ENTRIES = {
    "planned": is_shown(
        [
            "none",
            "learned",
            "sinusoidal",
            "t5",
            "fire",
            "conv",
            "linear_attention",
            "path_published",
        ]
    ),
    "all": pl.lit(value=True),
    "alone": ~pl.col("entry").str.contains("+", literal=True),
    "others": OTHERS,
    "learning": OTHERS & ~pl.col("entry").is_in(["none", "linear_attention"]),
}


@cache
def shipped(name: str = "v2_1") -> Scores:
    """Return the scores of the runs of a suite that ship."""
    suite = load_suite(name)
    return score(
        suite, read_shipped(suite), pl.DataFrame(schema=SCHEMA), read_shipped(suite, ".again")
    )


@cache
def decide(name: str, claims: Path) -> pl.DataFrame:
    """Return what the runs of a suite that ship say of the claims in a file."""
    suite, rows = shipped(name).suite, read_shipped(shipped(name).suite)
    return decide_claims(read_claims(claims, suite), suite, rows, rows.clear())


def correlate(scores: Scores, of: str) -> list[tuple[str, str, pl.DataFrame]]:
    """Return name, text and rows of the correlations of success with the error on text."""
    return [
        (f"{of}text {{split}} {name}{key}", text, rows)
        for name, which in ENTRIES.items()
        for rows in [compare_with_text(replace(scores, cells=scores.cells.filter(which)), 12)]
        for key, text in (
            ("", "{rho:.2f} [{low:.2f}, {high:.2f}]"),
            (" n", "{n}"),
            (" p", "{p:.1g}"),
        )
    ]


def list_restored(scores: Scores) -> pl.DataFrame:
    """Return how many ``percent`` interventions restore, by ``name``, and the cause of a cell."""
    return pl.DataFrame(
        [
            (entry, task, of.verdict.cause, name, 100 * share)
            for (task, entry), of in verdicts_of(
                scores, shipped_diagnoses(scores.suite), {}
            ).items()
            for name, share in of.verdict.shares.items()
        ],
        ["entry", "task", "cause", "name", "percent"],
        orient="row",
    )


@cache
def read_numbers() -> dict[str, str]:
    """Return what replaces each pair of braces in the texts, by the words between them."""
    v2, v2_1 = shipped("v2"), shipped()
    texts = [
        (
            "{entry} {task} {split} {phase} {lr:g}",
            "{low:.2g} to {high:.2g} %",
            v2_1.rows.drop_nulls("error")
            .group_by("entry", "task", "split", "phase", "lr")
            .agg(low=100 * pl.min("error"), high=100 * pl.max("error")),
        ),
        ("x2 {entry} {task}", "{learned}/{n}, {both}/{n}", v2_1.success("steps_x2")),
        (
            "{claim} {task}",
            "{k_a}/{n_a} and {k_b}/{n_b} (p = {p:.2g})",
            decide("v2_1", PLAN).drop_nulls("p"),
        ),
    ]
    for of, scores in (("", v2_1), ("v2 ", v2)):
        seeds, pairs, restored = scores.success(), compare_columns(scores), list_restored(scores)
        cells = scores.cells.with_columns(percent=100 * pl.col("median").fill_null(math.nan))
        texts += [
            # Of errors on text in v2.1: the success in v2 was known when text-rank was registered.
            *correlate(replace(scores, cells=v2_1.cells), of),
            (of + "pairs", "{pairs}", pl.DataFrame({"pairs": [len(pairs)]})),
            (of + "{label} {task} p", "{p:.2g}", pairs),
            (of + "{label} {task} p_holm", "{p_holm:.2g}", pairs),
            (of + "{entry} {task} cause", "{cause}", restored),
            (of + "{entry} {task} restored {name}", "{percent:.0f} %", restored),
            (of + "{entry} {task}", "{k}/{n}", seeds),
            (of + "{entry} {task} learned", "{learned}/{n}", seeds),
            (of + "{entry} {task} both", "{both}/{n}", seeds),
            (of + "{entry} {task} {split}", "{k}/{n}", cells),
            (of + "{entry} {task} {split} median", "{percent:.0f} %", cells),
            (of + "{entry} {task} rate", "{lr:g}", cells),
        ]
    return {
        key.format_map(row): text.format_map(row)
        for key, text, of in texts
        for row in of.to_dicts()
    }


def fill_page(path: Path) -> str:
    """Return a page: its text with numbers and tables."""
    scores, known = shipped(), read_numbers()
    in_two = scores.rows.filter(~pl.col("entry").str.contains("large|conv_"))
    tables = {
        "first": [first_table(scores, scores.tasks)],
        "claims": [claims_table(decide("v2", shipped_file("v2.claims.yaml")))],
        "claims of v2.1": [claims_table(decide("v2_1", PLAN))],
        "columns": [columns_table(scores, scores.tasks)],
        "entries": entries_tables(replace(scores, rows=in_two), scores.tasks),
    }
    text = re.sub(
        r"\{([^}]*)\}",
        lambda at: known[at[1]],
        path.with_suffix(".text.md").read_text("utf-8").strip(),
    )
    # A name that is no table's ends in an error, as that of a number does.
    text = re.sub(
        "<!-- (.*?) -->",
        lambda at: "\n".join(table.markdown() for table in tables[at[1]]).strip(),
        text,
    )
    return (
        f"<!-- Written by `make leaderboard` from docs/{path.stem}.text.md: edit that. -->\n\n"
        f"{text}\n"
    )


if __name__ == "__main__":
    for path in PAGES:
        write(path, fill_page(path))
    write(PAGE.parent / "img" / "lengths.svg", draw_lengths(shipped(), "svg").decode())
