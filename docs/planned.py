"""The planned comparisons of docs/leaderboard.md: a row each."""

from typing import NamedTuple

import polars as pl

from docs import facts
from docs.markdown import table
from pe_lab.results.plan_runs import rows_of_plans, runs_of, why_exploratory
from pe_lab.results.plan_tests import evaluate, learned, verdict
from pe_lab.results.plans import Plan, read_plan
from pe_lab.results.presentation.formats import in_markdown
from pe_lab.results.suite import Suite

FOLDER = facts.ROOT / "docs" / "plans"
HEAD = ["claim", "task: splits", "seeds that generalise", "others that learn the task", "verdict"]


class Decided(NamedTuple):
    """A plan with shipped runs.

    Args:
        name: of its file, without ``.yaml``.
        runs: how many are shipped.
        rows: of ``evaluate``.
        exploratory: why it is not planned; None if it is.
    """

    name: str
    plan: Plan
    runs: int
    rows: pl.DataFrame
    exploratory: str | None


def plans(suite: Suite) -> tuple[list[Decided], list[str]]:
    """Those with shipped runs, and the names of those without."""
    found, waiting = [], []
    of_plans = rows_of_plans(None, suite)
    for path in sorted(FOLDER.glob("*.yaml")):
        plan = read_plan(path)
        if runs := runs_of(plan, None, suite):
            rows = evaluate(plan, of_plans, suite)
            reason = why_exploratory(plan, runs, suite)
            found.append(Decided(path.stem, plan, len(runs), rows, reason))
        else:
            waiting.append(path.stem)
    return found, waiting


def summary(decided: list[Decided], waiting: list[str]) -> str:
    """A row for each plan, those that are supported first."""
    ordered = sorted(decided, key=lambda one: (verdict(one.rows), [*one.plan.tasks]), reverse=True)
    text = table(HEAD, [_row(one) for one in ordered])
    if waiting:
        links = ", ".join(f"[{name}](plans/{name}.yaml)" for name in waiting)
        text += f"\n\nNone of their runs is shipped yet: {links}."
    return text


def _row(one: Decided) -> list[str]:
    first, *others = one.plan.encodings
    rows = [row for row in one.rows.iter_rows(named=True) if row["n_a"] and row["n_b"]]
    tasks = [f"{task}: {', '.join(splits)}" for task, splits in one.plan.tasks.items()]
    counts = ""
    if rows:
        a = min(rows, key=lambda row: row["k_a"] / row["n_a"])
        b = max(rows, key=lambda row: row["k_b"] / row["n_b"])
        counts = f"{a['k_a']}/{a['n_a']}, others at most {b['k_b']}/{b['n_b']}"
    fit = {row["b"] for row in rows if learned(row, "b")}
    said = f"[{verdict(one.rows)}](plans/{one.name}.yaml)"
    return [
        in_markdown(f"{first} over {', '.join(others)}"),
        in_markdown("; ".join(tasks)),
        counts,
        f"{len(fit)} of {len(others)}",
        f"{said}, exploratory" if one.exploratory else said,
    ]
