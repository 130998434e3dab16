"""``make leaderboard``: docs/leaderboard.md with its picture.

Every number comes from the runs that ship. In docs/leaderboard.text.md braces are replaced by
a number: ``{fire+conv recall}`` for k/n seeds that generalise to every scored split of recall,
``{fire recall long_x2}`` for k/n on one split, ``{fire recall long_x2 median}`` for the median
error, ``{fire recall restored fewer keys}`` for what an intervention of ``pe-lab why`` restores.
``{works recall conv}`` counts the entries that work. ``<!-- first -->`` becomes a table.
"""

import re
from functools import cache

from docs import facts
from docs.markdown import write
from pe_lab.core.console import percent
from pe_lab.explain.cells import Cell
from pe_lab.report.html import drawn
from pe_lab.report.leaderboard import heat_map
from pe_lab.suite.claims import decide_claims, read_claims
from pe_lab.suite.rows import read_shipped, shipped_file
from pe_lab.suite.scores import Scores, score
from pe_lab.suite.suite import load_suite
from pe_lab.suite.tables import claims_table, count_seeds, entries_table, first_table
from pe_lab.suite.verdicts import shipped_diagnoses, verdicts_of

PAGE = facts.ROOT / "docs" / "leaderboard.md"
# The page, with words in place of numbers.
TEXT = PAGE.with_suffix(".text.md")


@cache
def shipped() -> Scores:
    """Return the scores of the runs of suite v2 that ship."""
    suite = load_suite()
    rows = read_shipped(suite)
    return score(suite, rows, rows.clear(), read_shipped(suite, ".again"))


@cache
def verdicts() -> dict[tuple[str, str], Cell]:
    """Return the shipped verdicts by task and entry."""
    return verdicts_of(shipped(), shipped_diagnoses(shipped().suite), {})


def numbers() -> dict[str, str]:
    """Return what replaces each pair of braces in the text, by the words between them."""
    counts = count_seeds(shipped())
    numbers = {
        f"{one['entry']} {one['task']}": f"{one['k']}/{one['n']}" for one in counts.to_dicts()
    }
    for row in shipped().cells.iter_rows(named=True):
        cell = f"{row['entry']} {row['task']} {row['split']}"
        numbers |= {cell: f"{row['k']}/{row['n']}", f"{cell} median": f"{percent(row['median'])} %"}
    for (task, column), of in counts.group_by("task", "column"):
        numbers[f"works {task} {column}"] = f"{of['works'].sum()} of {len(of)}"
    for (task, entry), diagnosed in verdicts().items():
        shares = diagnosed.verdict.shares.items()
        numbers |= {f"{entry} {task} restored {name}": f"{100 * s:.0f} %" for name, s in shares}
    return numbers


def page() -> str:
    """Return the whole page."""
    scores, known = shipped(), numbers()
    rows = read_shipped(scores.suite)
    claims = read_claims(shipped_file("v2.claims.yaml"), scores.suite)
    text = TEXT.read_text("utf-8").strip()
    text = re.sub(r"\{([\w+ ]+)\}", lambda found: known[found[1]], text)
    for name, table in {
        "first": first_table(scores, scores.tasks),
        "entries": entries_table(scores, scores.tasks),
        "claims": claims_table(decide_claims(claims, scores.suite, rows, rows.clear())),
    }.items():
        text = text.replace(f"<!-- {name} -->", table.markdown().strip())
    return f"<!-- Written by `make leaderboard` from docs/{TEXT.name}: edit that. -->\n\n{text}\n"


if __name__ == "__main__":
    write(PAGE, page())
    picture = drawn(heat_map(shipped(), shipped().tasks, at_least_half=True), "svg")
    write(PAGE.parent / "img" / "leaderboard.svg", picture.decode())
