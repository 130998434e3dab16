"""``make leaderboard``: docs/leaderboard.md, from the shipped results of the suite alone.

The shipped file itself is written from run folders and what it holds already:

    pe-lab leaderboard runs_dir=FOLDER to=pe_lab/results/leaderboard/v1.parquet
"""

import polars as pl

from docs import facts
from pe_lab.results.formats import markdown
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.across import across_table
from pe_lab.results.leaderboard.families import rates_by
from pe_lab.results.leaderboard.notes import closing_notes
from pe_lab.results.leaderboard.rows import SCHEMA
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.leaderboard.tables import by_family, overview
from pe_lab.results.leaderboard.task_tables import phases_table, task_table
from pe_lab.results.leaderboard.vs_published import published_table
from pe_lab.results.suite import DEFAULT, load_suite

PAGE = facts.ROOT / "docs" / "leaderboard.md"
TEXT = facts.ROOT / "docs" / "leaderboard.text.md"
TABLES = "<!-- tables -->"
NOTICE = (
    "<!-- Written by `make leaderboard` from pe_lab/results/leaderboard/ and "
    "docs/leaderboard.text.md: edit those. -->"
)


def page() -> str:
    """The whole page."""
    before, _, after = TEXT.read_text("utf-8").partition(TABLES)
    return "\n\n".join([NOTICE, before.strip(), *_tables(), after.strip()]) + "\n"


def _tables() -> list[str]:
    suite = load_suite(DEFAULT)
    rows, digest = file.shipped_rows(suite)
    if rows.is_empty():
        return ["No results are shipped yet."]
    found = scores(suite, rows, pl.DataFrame(schema=SCHEMA))
    scored = [task for task in suite.tasks if task in set(found.cells["task"])]
    parts = ["## In short", "\n".join(_in_short(found, scored)), "## By family"]
    families = by_family(suite, list(suite.tasks))
    parts.append(markdown(overview(found, families, "P(generalises) by family of tasks")).strip())
    if left := [task for task in suite.tasks if task not in scored]:
        parts.append(f"Not run yet: {', '.join(left)}.")
    if len(scored) > 1:
        parts += ["## Over tasks", markdown(across_table(found, scored)).strip()]
    for task in scored:
        parts += [f"## {task}", markdown(task_table(found, task)).strip()]
        if (others := phases_table(found, task)) is not None:
            parts.append(markdown(others).strip())
    if (beside := published_table(found, scored)).rows:
        parts += ["## Published numbers", markdown(beside).strip()]
    notes = closing_notes(found, list(suite.tasks), digest)
    parts += ["## How it was made", "\n".join(f"- {note}" for note in notes)]
    return parts


def _in_short(found: Scores, tasks: list[str]) -> list[str]:
    """Of each task, the entries that generalise most, and cope and rope."""
    lines = []
    for task in tasks:
        rates = rates_by(found, "generalises", {task: [task]})
        shares = {entry: of[task] for entry, of in rates.items()}
        ordered = sorted(shares, key=lambda entry: -shares[entry].k / shares[entry].n)
        shown = dict.fromkeys([*ordered[:5], *(e for e in ("cope", "rope") if e in shares)])
        parts = [f"{entry} {shares[entry].k}/{shares[entry].n}" for entry in shown]
        runs = sorted({rate.runs for rate in shares.values()})
        seeds = f"{runs[0]} to {runs[-1]}" if len(runs) > 1 else f"{runs[0]}"
        what = f"- **{task}**, runs and splits that generalise, {seeds} seeds: "
        lines.append(what + ", ".join(parts))
    return lines


def main() -> None:
    """Write the page if it changed."""
    text = page()
    if not PAGE.exists() or PAGE.read_text("utf-8") != text:
        PAGE.write_text(text, "utf-8")
        print(f"wrote {PAGE.relative_to(facts.ROOT)}")


if __name__ == "__main__":
    main()
