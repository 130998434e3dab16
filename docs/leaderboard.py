"""``make leaderboard``: docs/leaderboard.md with its picture.

Every number comes from the runs that ship. In docs/leaderboard.text.md braces are replaced by
a number: ``{fire+conv recall}`` for k/n seeds that generalise to every scored split of recall,
``{fire recall learned}`` for those that learn it, ``{fire recall p}`` and ``{fire recall p_holm}``
for the test of both columns, ``{fire recall long_x2}`` for k/n on one split, and ``{fire recall
restored fewer keys}`` for what an intervention of ``pe-lab why`` restores. ``{v2.1 fire recall}``
is of suite v2.1, ``{wide-gap-fire brackets}`` the test of a claim about it, ``{text long_x4}`` the
correlation of success with the error on text. ``<!-- first -->`` becomes a table.
"""

import re
from functools import cache

from docs import facts
from docs.markdown import write
from pe_lab.cli.leaderboard import first_table
from pe_lab.explain.verdict import Cell
from pe_lab.report.leaderboard import draw_lengths
from pe_lab.suite.claims import decide_claims, read_claims
from pe_lab.suite.rows import read_shipped, shipped_file
from pe_lab.suite.scores import Scores, compare_with_text, score
from pe_lab.suite.suite import load_suite
from pe_lab.suite.tables import (
    claims_table,
    columns_table,
    compare_columns,
    entries_tables,
)
from pe_lab.suite.verdicts import shipped_diagnoses, verdicts_of

PAGE = facts.ROOT / "docs" / "leaderboard.md"
# The page, with words in place of numbers, and the claims about suite v2.1.
TEXT, PLAN = PAGE.with_suffix(".text.md"), PAGE.with_name("claims-v2.1.yaml")


@cache
def shipped(name: str = "v2") -> Scores:
    """Return the scores of the runs of a suite that ship."""
    suite = load_suite(name)
    rows = read_shipped(suite)
    return score(suite, rows, rows.clear(), read_shipped(suite, ".again"))


@cache
def verdicts() -> dict[tuple[str, str], Cell]:
    """Return the shipped verdicts by task and entry."""
    return verdicts_of(shipped(), shipped_diagnoses(shipped().suite), {})


def numbers() -> dict[str, str]:
    """Return what replaces each pair of braces in the text, by the words between them."""
    pairs, known = compare_columns(shipped()), dict[str, str]()
    for prefix, scores in (("", shipped()), ("v2.1 ", shipped("v2_1"))):
        of_splits = scores.cells.select("task", "entry", "lr", "split", of_split="k")
        for row in scores.success().join(of_splits, on=["task", "entry"]).to_dicts():
            cell = f"{prefix}{row['entry']} {row['task']}"
            known |= {
                cell: f"{row['k']}/{row['n']}",
                f"{cell} learned": f"{row['learned']}/{row['n']}",
                f"{cell} {row['split']}": f"{row['of_split']}/{row['n']}",
                f"{cell} rate": f"{row['lr']:g}",
            }
    known |= {
        f"{row['label']} {row['task']} {name}": f"{row[name]:.2g}"
        for row in pairs.iter_rows(named=True)
        for name in ("p", "p_holm")
    }
    known |= {
        f"{entry} {task} restored {name}": f"{100 * share:.0f} %"
        for (task, entry), diagnosed in verdicts().items()
        for name, share in diagnosed.verdict.shares.items()
    }
    suite, runs = shipped("v2_1").suite, read_shipped(shipped("v2_1").suite)
    for of in decide_claims(read_claims(PLAN, suite), suite, runs, runs.clear()).to_dicts():
        known["{claim} {task}".format_map(of)] = (
            "{k_a}/{n_a} and {k_b}/{n_b} (p = {p:.2g})".format_map({**of, "p": of["p"] or 1})
        )
    # Success in v2, which is complete, beside the errors on text at the rates of v2.1.
    for split, _, *values in compare_with_text(
        Scores(shipped().suite, shipped().rows, shipped("v2_1").cells)
    ).iter_rows():
        known[f"text {split}"] = "{:.2f} [{:.2f}, {:.2f}]".format(*values)
    return known | {"pairs": str(len(pairs))}


def page() -> str:
    """Return the whole page."""
    scores, known, rows = shipped(), numbers(), read_shipped(shipped().suite)
    claims = read_claims(shipped_file("v2.claims.yaml"), scores.suite)
    tables = {
        "first": [first_table(scores, scores.tasks)],
        "claims": [claims_table(decide_claims(claims, scores.suite, rows, rows.clear()))],
        "columns": [columns_table(scores, scores.tasks)],
        "entries": entries_tables(scores, scores.tasks),
    }
    text = re.sub(
        r"\{([\w+. -]+)\}", lambda found: known[found[1]], TEXT.read_text("utf-8").strip()
    )
    for name, of in tables.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(table.markdown() for table in of).strip())
    return f"<!-- Written by `make leaderboard` from docs/{TEXT.name}: edit that. -->\n\n{text}\n"


if __name__ == "__main__":
    write(PAGE, page())
    write(PAGE.parent / "img" / "lengths.svg", draw_lengths(shipped(), "svg").decode())
