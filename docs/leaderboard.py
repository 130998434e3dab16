"""``make leaderboard``: docs/leaderboard.md and its picture, from the shipped results of the suite
alone.

The shipped file itself is written from run folders and what it holds already:

    pe-lab leaderboard runs_dir=FOLDER to=pe_lab/results/leaderboard/v1.parquet
"""

import polars as pl

from docs import facts
from pe_lab.report.leaderboard_heat import heat_picture, leaderboard_heat
from pe_lab.report.pictures import drawn
from pe_lab.results.formats import markdown
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
from pe_lab.results.plan_runs import rows_of_plans, runs_of, why_exploratory
from pe_lab.results.plan_tests import evaluate, result_table, verdict
from pe_lab.results.plans import read_plan
from pe_lab.results.suite import DEFAULT, Suite, load_suite

PAGE = facts.ROOT / "docs" / "leaderboard.md"
TEXT = facts.ROOT / "docs" / "leaderboard.text.md"
PICTURE = facts.ROOT / "docs" / "img" / "leaderboard.svg"
PLANS = facts.ROOT / "docs" / "plans"
TABLES = "<!-- tables -->"
SHOWN = 5
"""Entries of a task that are named in short, and those with the same share as the last."""
NOTICE = (
    "<!-- Written by `make leaderboard` from pe_lab/results/leaderboard/ and "
    "docs/leaderboard.text.md: edit those. -->"
)


def page() -> str:
    """The whole page."""
    before, _, after = TEXT.read_text("utf-8").partition(TABLES)
    return "\n\n".join([NOTICE, before.strip(), *_tables(), after.strip()]) + "\n"


def picture() -> str:
    """The heat map of the entries that have run half of the tasks or more, as SVG."""
    found, _ = shipped()
    heat = leaderboard_heat(found, list(found.suite.tasks))
    return drawn(heat_picture(heat, found.suite.title, at_least_half=True), "svg").decode()


def shipped() -> tuple[Scores, str | None]:
    """The shipped results, and the digest of their file."""
    suite = load_suite(DEFAULT)
    rows, digest = file.shipped_rows(suite)
    return scores(suite, rows, pl.DataFrame(schema=SCHEMA)), digest


def _tables() -> list[str]:
    found, digest = shipped()
    if found.rows.is_empty():
        return ["No results are shipped yet."]
    suite = found.suite
    scored = [task for task in suite.tasks if task in set(found.cells["task"])]
    parts = ["## In short", "\n".join(_in_short(found, scored))]
    parts += ["## Plans", *_plans(suite), "## By family"]
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
    return parts


def _in_short(found: Scores, tasks: list[str]) -> list[str]:
    """Of each task, the entries that generalise most, cope and rope, and which differ."""
    lines = []
    for task in tasks:
        rates = rates_by(found, "generalises", {task: [task]})
        shares = {entry: of[task].share for entry, of in rates.items()}
        entries = sorted(shares, key=lambda entry: -shares[entry])
        last = shares[entries[min(SHOWN, len(entries)) - 1]]
        first = [entry for entry in entries if shares[entry] >= last]
        shown = dict.fromkeys([*first, *(e for e in ("cope", "rope") if e in shares)])
        parts = [f"{entry} {share_text(shares[entry])}" for entry in shown]
        which = " (the highest, cope and rope)" if len(parts) < len(entries) else ""
        seeds = sorted({of[task].runs for of in rates.values()})
        n = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
        what = f"- **{task}**, P(generalises) in % of {len(entries)} entries with {n} seeds{which}"
        lines.append(f"{what}: {', '.join(parts)}. {_differences(found, task)}")
    return lines


def _differences(found: Scores, task: str) -> str:
    """Which encodings differ significantly from the one that generalises most, or which do not:
    the shorter list."""
    listed = entry_order(found, [task])[0]
    of = ties(found, [task], listed)
    test = "exact test, Holm over all pairs"
    if of.best:
        first = {*next(iter(of.letters.values()))}
        alike = sorted(entry for entry, letters in of.letters.items() if first & {*letters})
        below = ", ".join(entry for entry in alike if entry not in of.best)
        few = f" Lower too, but of too few seeds to differ: {below}." if below else ""
        if len(others := [e for e in listed if e in of.letters and e not in alike]) < len(alike):
            names = ", ".join(others)
            return (
                f"What differs from the highest encoding ({test}, of {of.compared}): {names}.{few}"
            )
        names = ", ".join(alike)
        return f"The highest encoding and those that do not differ from it ({test}): {names}.{few}"
    if of.least_p is None:
        return "Too few seeds for a test."
    return (
        f"No encoding differs significantly from the highest ({test} of {of.compared} encodings: "
        f"the smallest corrected p is {of.least_p:.2g})."
    )


def _plans(suite: Suite) -> list[str]:
    """What the shipped runs say of each plan, and whether they began after it was written."""
    found, waiting = [], []
    of_plans = rows_of_plans(None, suite)
    for path in sorted(PLANS.glob("*.yaml")):
        plan = read_plan(path)
        link = f"[{path.stem}](plans/{path.name})"
        if not (runs := runs_of(plan, None, suite)):
            waiting.append(link)
            continue
        rows = evaluate(plan, of_plans, suite)
        reason = why_exploratory(plan, runs, suite)
        said = f"exploratory, since {reason}" if reason else "planned"
        missing = dict.fromkeys(rows["missing"].drop_nulls())
        parts = [f"{said}: **{verdict(rows)}**", *missing]
        found += [
            f"{link}, written {plan.written[:16]} UTC, {len(runs)} runs; {'; '.join(parts)}.",
            markdown(result_table(plan, rows)).strip(),
        ]
    if waiting:
        found.append(f"None of their runs is shipped yet: {', '.join(waiting)}.")
    return found


def main() -> None:
    """Write the page and the picture if they changed."""
    for path, text in {PAGE: page(), PICTURE: picture()}.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")


if __name__ == "__main__":
    main()
