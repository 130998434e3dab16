"""``make leaderboard``: docs/leaderboard.md and its pictures, from the shipped results of the suite
alone; and the first table of README.md, of these and the run of ``make run`` in findings.parquet.

The shipped file itself is written from run folders and what it holds already:

    pe-lab leaderboard runs_dir=FOLDER to=pe_lab/results/leaderboard/v1.parquet
"""

import polars as pl

from docs import facts
from docs.markdown import insert, table
from pe_lab.common.console import percent
from pe_lab.common.html import drawn
from pe_lab.report.leaderboard import heat_map, threshold_figure
from pe_lab.results.frame import by_split, filtered
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.claims import Decided, decide, read_claims
from pe_lab.results.leaderboard.families import (
    by_family,
    entry_order,
    most_evidence,
)
from pe_lab.results.leaderboard.rows import SCHEMA
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.presentation.formats import markdown
from pe_lab.results.presentation.leaderboard import overview
from pe_lab.results.presentation.leaderboard_details import (
    across_tables,
    claims_table,
)
from pe_lab.results.presentation.needs import Need, doubts, needs, needs_table
from pe_lab.results.selection import FINDINGS, read_file_of_runs
from pe_lab.results.suite import DEFAULT, load_suite

PAGE = facts.ROOT / "docs" / "leaderboard.md"
TEXT = facts.ROOT / "docs" / "leaderboard.text.md"
PICTURE = facts.ROOT / "docs" / "img" / "leaderboard.svg"
CURVE = facts.ROOT / "docs" / "img" / "threshold.svg"
MARKERS = tuple(f"<!-- {name} -->" for name in ("needs", "families", "across", "claims", "next"))
"""Where the parts of the page that are made stand in its text."""
SHOWN = 10
"""Entries of a table of the page."""
NOTICE = (
    "<!-- Written by `make leaderboard` from pe_lab/results/leaderboard/ and "
    "docs/leaderboard.text.md: edit those. -->"
)
README = facts.ROOT / "README.md"
RUN = "task=flipflop and pe=cope and seed=0 and model.n_layers=2 and task.length=64 and steps=400"
"""One layer and length 512 are findings, too."""
ENTRIES = ("path", "fox", "cope", "rope")


def page() -> str:
    """The whole page."""
    text = TEXT.read_text("utf-8").strip()
    for marker, made in _made().items():
        assert text.count(marker) == 1, marker
        text = text.replace(marker, made)
    return f"{NOTICE}\n\n{text}\n"


def picture() -> str:
    """The heat map of the entries that have run half of the tasks or more, as SVG."""
    found, _ = shipped()
    return drawn(heat_map(found, list(found.suite.tasks), at_least_half=True), "svg").decode()


def curve() -> str:
    """The success rate by threshold, as SVG."""
    found, _ = shipped()
    return drawn(threshold_figure(found, list(found.suite.tasks)), "svg").decode()


def shipped() -> tuple[Scores, str | None]:
    """The shipped results, and the digest of their file."""
    suite = load_suite(DEFAULT)
    rows, digest = file.shipped_rows(suite)
    return scores(suite, rows, pl.DataFrame(schema=SCHEMA), file.shipped_again(suite)), digest


def claims() -> list[Decided]:
    """The preregistered claims, decided by the shipped runs, supported ones first."""
    suite = load_suite(DEFAULT)
    rows, _ = file.shipped_rows(suite)
    found = decide(read_claims(file.shipped_claims(suite.name)), suite, rows, rows.clear())
    return sorted(found, key=lambda one: (one.verdict, [*one.claim.tasks]), reverse=True)


def _made() -> dict[str, str]:
    """marker of the text -> what takes its place."""
    found, _ = shipped()
    if found.rows.is_empty():
        return dict.fromkeys(MARKERS, "No results are shipped yet.")
    suite = found.suite
    tasks = [task for task in suite.tasks if task in set(found.cells["task"])]
    listed, _ = entry_order(found, tasks)
    most = most_evidence(found, tasks, listed, SHOWN)
    families = by_family(suite, list(suite.tasks))
    title = f"Success rate in %, the {len(most)} entries with the most runs"
    across = [one for one in across_tables(found, tasks, most) if len(one.rows) > 2]
    doubted = "\n".join(f"- {sentence}" for sentence in doubts(found, tasks))
    made = {
        "needs": f"{markdown(needs_table(found, tasks))}\n{doubted}",
        "families": markdown(overview(found, families, title, shown=most)),
        "across": "\n".join(map(markdown, across[:2])),
        "claims": markdown(claims_table(claims())),
        "next": next_suite(),
    }
    return {f"<!-- {name} -->": text.strip() for name, text in made.items()}


def next_suite() -> str:
    """k/n of what v2 has so far: each encoding alone, and with the convolution."""
    suite = load_suite("v2")
    rows, _ = file.shipped_rows(suite)
    made = needs(scores(suite, rows, rows.clear(), file.shipped_again(suite)), list(suite.tasks))
    run = {entry for need in made for counts in need.counts.values() for entry in counts}
    lines = [[e, *(_columns(need, e) for need in made)] for e in suite.entries if e in run]
    return table(["entry", *(need.task for need in made)], lines)


def _columns(need: Need, entry: str) -> str:
    """``0/8, 8/8``, a count for each column; ``-`` for one that was not run, or for all."""
    found = [of.get(entry) for of in need.counts.values()]
    return ", ".join("{}/{}".format(*one) if one else "-" for one in found) if any(found) else "-"


def first_table() -> str:
    """Of each split: the error of the run, and how many seeds of each entry generalise to it."""
    run = filtered(read_file_of_runs(FINDINGS), RUN, {})
    if len(run) != 1:
        raise SystemExit(f"findings.parquet has {len(run)} runs with {RUN}, not one")
    splits = by_split(run)
    cells = {
        (row["entry"], row["split"]): f"{row['k']}/{row['n']}"
        for row in shipped()[0].cells.filter(task="flipflop").iter_rows(named=True)
    }
    rows = [
        [f"`{split}`", percent(error), percent(guess), *(cells[entry, split] for entry in ENTRIES)]
        for split, error, guess in splits.select("split", "error", "guess").iter_rows()
    ]
    return table(["split", "`make run`: CoPE, error in %", "guessing, %", *ENTRIES], rows)


def write_first_table() -> None:
    """Put the table into README.md."""
    insert(README, first_table(), "make leaderboard")


def main() -> None:
    """Write the page and its pictures if they changed."""
    for path, text in {PAGE: page(), PICTURE: picture(), CURVE: curve()}.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")
    write_first_table()


if __name__ == "__main__":
    main()
