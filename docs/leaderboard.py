"""``make leaderboard``: docs/leaderboard.md and its picture, from the shipped results of the suite
alone.

The shipped file itself is written from run folders and what it holds already:

    pe-lab leaderboard runs_dir=FOLDER to=pe_lab/results/leaderboard/v1.parquet
"""

import polars as pl

from docs import facts
from pe_lab.common.html import drawn
from pe_lab.report.leaderboard import leaderboard_grid
from pe_lab.report.tables import picture as picture_of
from pe_lab.results.claim_tests import Decided, claims_table, decide
from pe_lab.results.claims import read_claims
from pe_lab.results.formats import Cell, Table, markdown
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.across import across_tables
from pe_lab.results.leaderboard.families import rates_by, ties
from pe_lab.results.leaderboard.notes import closing_notes
from pe_lab.results.leaderboard.rows import SCHEMA
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.leaderboard.tables import by_family, overview
from pe_lab.results.leaderboard.task_tables import phases_table, task_table
from pe_lab.results.leaderboard.texts import entry_order, share_text
from pe_lab.results.leaderboard.tuning_table import grid_ends
from pe_lab.results.leaderboard.vs_published import published_table
from pe_lab.results.suite import DEFAULT, load_suite

PAGE = facts.ROOT / "docs" / "leaderboard.md"
TEXT = facts.ROOT / "docs" / "leaderboard.text.md"
PICTURE = facts.ROOT / "docs" / "img" / "leaderboard.svg"
IN_SHORT, PLANS, TABLES = "<!-- in short -->", "<!-- plans -->", "<!-- tables -->"
"""Where the parts of the page that are made stand in its text."""
SHOWN = 5
"""Entries of a task that are named in short, and those with the same share as the last."""
NOTICE = (
    "<!-- Written by `make leaderboard` from pe_lab/results/leaderboard/ and "
    "docs/leaderboard.text.md: edit those. -->"
)


def page() -> str:
    """The whole page."""
    text = TEXT.read_text("utf-8").strip()
    for marker, parts in _made().items():
        assert text.count(marker) == 1, marker
        text = text.replace(marker, "\n\n".join(parts))
    return f"{NOTICE}\n\n{text}\n"


def picture() -> str:
    """The heat map of the entries that have run half of the tasks or more, as SVG."""
    found, _ = shipped()
    grid = leaderboard_grid(found, list(found.suite.tasks), at_least_half=True)
    return drawn(picture_of(grid), "svg").decode()


def shipped() -> tuple[Scores, str | None]:
    """The shipped results, and the digest of their file."""
    suite = load_suite(DEFAULT)
    rows, digest = file.shipped_rows(suite)
    return scores(suite, rows, pl.DataFrame(schema=SCHEMA)), digest


def claims() -> list[Decided]:
    """The preregistered claims, decided by the shipped runs, supported ones first."""
    suite = load_suite(DEFAULT)
    rows, _ = file.shipped_rows(suite)
    found = decide(read_claims(file.shipped_claims(suite.name)), suite, rows, rows.clear())
    return sorted(found, key=lambda one: (one.verdict, [*one.claim.tasks]), reverse=True)


def _made() -> dict[str, list[str]]:
    """marker of the text -> what takes its place."""
    found, digest = shipped()
    if found.rows.is_empty():
        return {IN_SHORT: ["No results are shipped yet."], PLANS: [], TABLES: []}
    suite = found.suite
    scored = [task for task in suite.tasks if task in set(found.cells["task"])]
    parts = ["## By family"]
    families = by_family(suite, list(suite.tasks))
    parts.append(markdown(overview(found, families, "P(generalises) by family of tasks")).strip())
    if left := [task for task in suite.tasks if task not in scored]:
        parts.append(f"Not run yet: {', '.join(left)}.")
    if len(scored) > 1:
        parts.append("## Over tasks")
        parts += [markdown(table).strip() for table in across_tables(found, scored)]
    for task in scored:
        parts += [f"## {task}", markdown(task_table(found, task)).strip()]
        if ends := grid_ends(found, task):
            parts.append(ends)
        if (others := phases_table(found, task)) is not None:
            parts.append(markdown(others).strip())
    if (beside := published_table(found, scored)).rows:
        parts += ["## Published numbers", markdown(beside).strip()]
    notes = closing_notes(found, list(suite.tasks), digest)
    parts += ["## How it was made", "\n".join(f"- {note}" for note in notes)]
    return {
        IN_SHORT: [markdown(_in_short(found, scored)).strip()],
        PLANS: [markdown(claims_table(claims())).strip()],
        TABLES: parts,
    }


def _in_short(found: Scores, tasks: list[str]) -> Table:
    """Of each task, the entries that generalise most, cope and rope, and which differ."""
    rows = []
    for task in tasks:
        rates = rates_by(found, "generalises", {task: [task]})
        shares = {entry: of[task].share for entry, of in rates.items()}
        entries = sorted(shares, key=lambda entry: -shares[entry])
        last = shares[entries[min(SHOWN, len(entries)) - 1]]
        first = [e for e in entries if shares[e] >= last and shares[e] > 0]
        shown = dict.fromkeys([*first, *(e for e in ("cope", "rope") if e in shares)])
        seeds = sorted({of[task].runs for of in rates.values()})
        n = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
        named = ", ".join(f"{entry} {share_text(shares[entry])}" for entry in shown)
        words = (task, str(len(entries)), n, named, _alike(found, task))
        rows.append([Cell(word) for word in words])
    return Table(
        title="P(generalises) in %, by task",
        columns=[
            "task",
            "entries",
            "seeds",
            "highest; cope, rope",
            "not significantly below the highest",
        ],
        words=5,
        rows=rows,
        caption=(
            "The share of seeds that generalise, its mean over the task's splits: the highest "
            f"{SHOWN} and those equal to the last of them, cope and rope. The last column has the "
            "encodings that do not differ from the highest encoding by an exact test, corrected "
            "over all pairs (Holm); controls are not tested."
        ),
    )


def _alike(found: Scores, task: str) -> str:
    """Which encodings do not differ significantly from the one that generalises most."""
    listed = entry_order(found, [task])[0]
    of = ties(found, [task], listed)
    if of.least_p is None:
        return "too few seeds for a test"
    if not of.best:
        return f"all {of.compared}"
    first = {*next(iter(of.letters.values()))}
    alike = sorted(entry for entry, letters in of.letters.items() if first & {*letters})
    others = [entry for entry in listed if entry in of.letters and entry not in alike]
    if len(others) < len(alike):
        return f"all {of.compared} but {', '.join(others)}"
    return ", ".join(alike)


def main() -> None:
    """Write the page and the picture if they changed."""
    for path, text in {PAGE: page(), PICTURE: picture()}.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")


if __name__ == "__main__":
    main()
