"""``make leaderboard``: docs/leaderboard.md with its picture, and the first table of README.md.

Every number comes from the runs that ship. In docs/leaderboard.text.md braces are replaced by
a number: ``{fire+conv recall}`` for k/n seeds that generalise to every scored split of recall,
``{fire recall long_x2}`` for k/n on one split, ``{fire recall long_x2 median}`` for the median
error, ``{fire recall restored fewer keys}`` for what an intervention of ``pe-lab why`` restores.
``{works recall conv}`` counts the entries that work. ``<!-- first -->`` becomes a table.
"""

import re
from functools import cache

from docs import facts
from docs.markdown import insert, table
from pe_lab.core.console import percent
from pe_lab.explain.cells import Cell
from pe_lab.report.html import drawn
from pe_lab.report.leaderboard import heat_map
from pe_lab.results.format import Table
from pe_lab.results.table import by_split, filtered, read_file_of_runs
from pe_lab.suite.claims import decide_claims, read_claims
from pe_lab.suite.rows import read_shipped, shipped_file
from pe_lab.suite.scores import Scores, score
from pe_lab.suite.suite import load_suite
from pe_lab.suite.tables import claims_table, entries_table, first_table
from pe_lab.suite.verdicts import shipped_diagnoses, verdicts_of

TEXT = facts.ROOT / "docs" / "leaderboard.text.md"
PAGE = facts.ROOT / "docs" / "leaderboard.md"
PICTURE = facts.ROOT / "docs" / "img" / "leaderboard.svg"
README = facts.ROOT / "README.md"
NOTICE = "<!-- Written by `make leaderboard` from docs/leaderboard.text.md: edit that. -->"
RUN = "task=flipflop and pe=cope and seed=0 and model.n_layers=2 and task.length=64 and steps=400"
ENTRIES = ("cope", "cope+conv", "path", "rope", "rope+conv")


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


def claims() -> Table:
    """Return the table of the claims on suite v2."""
    suite, rows = shipped().suite, read_shipped(shipped().suite)
    written = read_claims(shipped_file("v2.claims.yaml"), suite)
    return claims_table(decide_claims(written, suite, rows, rows.clear()))


def number(words: str) -> str:
    """Return what replaces a pair of braces in the text."""
    entry, task, *rest = words.split()
    if entry == "works":
        counts = first_table(shipped(), [task]).frame
        return str(counts[rest[0]][0]).partition(":")[0]
    if not rest:
        row = shipped().success().filter(entry=entry, task=task).row(0, named=True)
    elif rest[0] == "restored":
        return f"{100 * verdicts()[task, entry].verdict.shares[' '.join(rest[1:])]:.0f} %"
    else:
        cells = shipped().cells.filter(entry=entry, task=task, split=rest[0])
        row = cells.row(0, named=True)
        if rest[1:] == ["median"]:
            return f"{percent(row['median'])} %"
    return f"{row['k']}/{row['n']}"


def page() -> str:
    """Return the whole page."""
    scores = shipped()
    text = TEXT.read_text("utf-8").strip()
    text = re.sub(r"\{([\w+ ]+)\}", lambda found: number(found[1]), text)
    tables = {
        "first": first_table(scores, scores.tasks),
        "entries": entries_table(scores, scores.tasks),
        "claims": claims(),
    }
    for name, made in tables.items():
        text = text.replace(f"<!-- {name} -->", made.markdown().strip())
    return f"{NOTICE}\n\n{text}\n"


def first_run() -> str:
    """Return the table of README.md: the errors of the run of ``make run``, and how many seeds of
    some entries generalise to each split."""
    run = filtered(read_file_of_runs("findings"), RUN, {})
    assert len(run) == 1, f"{len(run)} runs with {RUN}"
    counts = {
        (row["entry"], row["split"]): f"{row['k']}/{row['n']}"
        for row in shipped().cells.filter(task="flipflop").iter_rows(named=True)
    }
    rows = [
        [f"`{split}`", percent(error), percent(guess), *(counts[entry, split] for entry in ENTRIES)]
        for split, error, guess in by_split(run).select("split", "error", "guess").iter_rows()
    ]
    return table(["split", "`make run`: CoPE, error in %", "guessing, %", *ENTRIES], rows)


def write_first_run() -> None:
    """Put ``first_run`` into README.md."""
    insert(README, first_run(), "make leaderboard")


def main() -> None:
    """Write what changed."""
    picture = drawn(heat_map(shipped(), shipped().tasks, at_least_half=True), "svg").decode()
    for path, text in {PAGE: page(), PICTURE: picture}.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")
    write_first_run()


if __name__ == "__main__":
    main()
