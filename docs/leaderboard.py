"""``make leaderboard``: docs/leaderboard.md with its picture, from the shipped results of suite
v2 alone; and the first table of README.md, of these and the run of
``make run`` in findings.parquet.

The shipped file itself is written from run folders and what it holds already:

    pe-lab leaderboard runs_dir=FOLDER to=pe_lab/results/leaderboard/v2.parquet
"""

from pathlib import Path

import polars as pl

from docs import facts
from docs.markdown import insert, table
from pe_lab.core.console import percent
from pe_lab.report.html import drawn
from pe_lab.report.leaderboard import heat_map
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.claims import Decided, decide, read_claims, shipped_claims
from pe_lab.results.leaderboard.rows import SCHEMA
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.presentation.formats import markdown
from pe_lab.results.presentation.leaderboard_details import (
    claims_table,
)
from pe_lab.results.presentation.needs import Need, doubts, needs, needs_table
from pe_lab.results.suite import DEFAULT, load_suite
from pe_lab.results.table import FINDINGS, by_split, filtered, read_file_of_runs

TEXTS = {
    DEFAULT: facts.ROOT / "docs" / "leaderboard.text.md",
}
"""The written part of each suite's page."""
PICTURE = facts.ROOT / "docs" / "img" / "leaderboard.svg"
NOTICE = (
    "<!-- Written by `make leaderboard` from pe_lab/results/leaderboard/ and docs/{}: edit those. "
    "-->"
)
README = facts.ROOT / "README.md"
RUN = "task=flipflop and pe=cope and seed=0 and model.n_layers=2 and task.length=64 and steps=400"
"""One layer and length 512 are findings, too."""
ENTRIES = ("cope", "cope+conv", "path", "rope", "rope+conv")


def page_of(text: Path) -> Path:
    """The page that a written part belongs to."""
    return text.with_name(text.name.replace(".text.md", ".md"))


def page(suite: str) -> str:
    """The whole page of a suite. A made part takes the place of its name, ``<!-- needs -->``."""
    path = TEXTS[suite]
    text, found = path.read_text("utf-8").strip(), shipped(suite)
    for name, made in MADE.items():
        marker = f"<!-- {name} -->"
        text = text.replace(marker, made(found).strip()) if marker in text else text
    return f"{NOTICE.format(path.name)}\n\n{text}\n"


def picture() -> str:
    """The heat map of the entries that have run half of the tasks or more, as SVG."""
    found = shipped()
    return drawn(heat_map(found, _run(found), at_least_half=True), "svg").decode()


def shipped(suite: str = DEFAULT) -> Scores:
    """The shipped results of a suite."""
    of = load_suite(suite)
    rows, _ = file.shipped_rows(of)
    return scores(of, rows, pl.DataFrame(schema=SCHEMA), file.shipped_again(of))


def claims(suite: str = DEFAULT) -> list[Decided]:
    """The preregistered claims, decided by the shipped runs, supported ones first."""
    of = load_suite(suite)
    rows, _ = file.shipped_rows(of)
    found = decide(read_claims(shipped_claims(suite)), of, rows, rows.clear())
    return sorted(found, key=lambda one: (one.verdict, [*one.claim.tasks]), reverse=True)


def _run(found: Scores) -> list[str]:
    """The tasks that have a score."""
    return [task for task in found.suite.tasks if task in {*found.cells["task"]}]


def _needs(found: Scores) -> str:
    doubted = "\n".join(f"- {sentence}" for sentence in doubts(found, _run(found)))
    return f"{markdown(needs_table(found, _run(found)))}\n{doubted}"


def _columns(found: Scores) -> str:
    """k/n of every entry on every task: alone, and with the convolution."""
    made = needs(found, _run(found))
    run = {entry for need in made for counts in need.counts.values() for entry in counts}
    lines = [[e, *(_counts(need, e) for need in made)] for e in found.suite.entries if e in run]
    return table(["entry", *(need.task for need in made)], lines)


def _counts(need: Need, entry: str) -> str:
    """``0/8°, 8/8``, a count for each column; ``-`` for one that was not run, or for all."""
    run = any(entry in counts for counts in need.counts.values())
    return ", ".join(need.text(column, entry) for column in need.counts) if run else "-"


MADE = {
    "needs": _needs,
    "columns": _columns,
    "claims": lambda found: markdown(claims_table(claims(found.suite.name))),
}
"""Name -> what makes a part of the page."""


def first_table() -> str:
    """Of each split: the error of the run, and how many seeds of each entry generalise to it."""
    run = filtered(read_file_of_runs(FINDINGS), RUN, {})
    if len(run) != 1:
        raise SystemExit(f"findings.parquet has {len(run)} runs with {RUN}, not one")
    splits = by_split(run)
    cells = {
        (row["entry"], row["split"]): f"{row['k']}/{row['n']}"
        for row in shipped().cells.filter(task="flipflop").iter_rows(named=True)
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
    pages = {page_of(path): page(suite) for suite, path in TEXTS.items()}
    for path, text in {**pages, PICTURE: picture()}.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")
    write_first_table()


if __name__ == "__main__":
    main()
