"""The tables of ``pe-lab results``, from groups of runs."""

from collections.abc import Sequence
from typing import Any, Literal

import polars as pl

from pe_lab.common.console import percent
from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import is_share
from pe_lab.common.suggest import did_you_mean
from pe_lab.results.aggregate import SETTING
from pe_lab.results.formats import Cell, Table
from pe_lab.results.reader import text

Spread = Literal["both", "sd", "interval"]
BEST = (
    "the lowest mean, its interval wholly below that of every other row measured on the same data; "
    "rows that tie only where all their seeds agree."
)
Key = tuple[Any, ...]
Cells = dict[str, dict[str, Any]]
"""column -> a row of ``grouped``."""


def tables(
    groups: pl.DataFrame,
    names: dict[str, str],
    by: Sequence[str] = SETTING,
    metric: str = "error",
    spread: Spread = "both",
    sort: str | None = None,
    across: str = "split",
) -> list[Table]:
    """A table for each task of ``groups``, as ``grouped`` and ``grouped_evaluations`` make them.

    Args:
        names: what a setting is called, see ``labels``.
        spread: shown beside a mean: sd, interval or both.
        sort: a split, n or a key of ``by``, after - for descending; None: by these keys.
        across: the key that makes the columns; with length, there is a table for each task and
            split.

    Raises:
        UsageError: ``sort`` names no column.
    """
    groups = groups.with_columns(pl.col(across).cast(pl.String))
    _check_sort(groups[across], by, sort)
    of_table = ["task"] if across == "split" else ["task", "split"]
    return [
        _table(part, ", ".join(map(str, title)), list(by), names, metric, spread, sort, across)
        for title, part in groups.group_by(of_table, maintain_order=True)
    ]


def _table(
    table: pl.DataFrame,
    title: str,
    by: list[str],
    names: dict[str, str],
    metric: str,
    spread: Spread,
    sort: str | None,
    across: str,
) -> Table:
    rows: dict[Key, Cells] = {}
    for cell in table.iter_rows(named=True):
        rows.setdefault(tuple(cell[key] for key in by), {})[cell[across]] = cell
    columns = list(dict.fromkeys(table[across]))
    shares = is_share(metric)
    headings = {"pe": "encoding", "setting": "where they differ"}
    # Settings that differ only in the encoding need no second column.
    shown = [k for k in by if k != "setting" or any(names.get(s) for s in table["setting"])]
    words = [*(headings.get(key, key) for key in shown), "n", "seeds"]
    lines = []
    for key in _sorted(rows, by, names, sort):
        cells = rows[key]
        n = max(cell["n"] for cell in cells.values())
        named = [
            names.get(value, "") if k == "setting" else _word(value)
            for k, value in zip(by, key, strict=True)
            if k in shown
        ]
        seeds = sorted({seed for cell in cells.values() for seed in cell["seeds"]})
        numbers = [_cell(cells.get(column), n, shares, spread) for column in columns]
        lines.append([*map(Cell, [*named, str(n), _seeds(seeds)]), *numbers])
    guesses = [table.filter(pl.col(across) == column)["guess"].mean() for column in columns]
    guessing = ["(guessing)", *[""] * (len(words) - 1), *map(_guess, guesses)]
    return Table(
        title=f"{title}: {metric}{' in %' if shares else ''}",
        columns=[*words, *columns],
        words=len(words),
        rows=lines,
        caption=_caption(table, shares, spread),
        best=BEST,
        closing=[list(map(Cell, guessing))] if metric == "error" else (),
    )


def _cell(cell: dict[str, Any] | None, n: int, shares: bool, spread: Spread) -> Cell:
    if cell is None:
        return Cell("")
    if cell["not_finite"]:
        return Cell("not finite")
    if not cell["n"]:
        return Cell("n/a")
    mean, sd, low, high = (cell[name] for name in ("mean", "sd", "low", "high"))
    digits = 3
    if shares:
        # As many for all as the mean needs: 0.03 is not 0.
        digits = 2 if 0 < mean < 0.1 else 1
        mean, sd, low, high = (v if v is None else 100 * v for v in (mean, sd, low, high))
    shown_mean = f"{mean:.{digits}f}"
    if sd is not None:
        if shares:
            low, high = max(0.0, low), min(100.0, high)
        if spread != "interval":
            shown_mean += f" ± {sd:.{digits}f}"
        if spread != "sd":
            shown_mean += f" ({low:.{digits}f}..{high:.{digits}f})"
    return Cell(shown_mean if cell["n"] == n else f"{shown_mean} n={cell['n']}", cell["best"])


def _caption(table: pl.DataFrame, shares: bool, spread: Spread) -> str:
    if (table["n"] <= 1).all():
        return "One run per row: the spread over seeds is unknown."
    over = "seeds" if (table["settings"] == 1).all() else "runs"
    cut = ", cut at 0 and 100 %" if shares else ""
    interval = f"the 95 % interval of the mean (Student's t{cut})"
    sd = f"Mean ± standard deviation over {over}"
    return {
        "both": f"{sd}, in parentheses {interval}.",
        "sd": f"{sd}.",
        "interval": f"Mean over {over}, in parentheses {interval}.",
    }[spread]


def _check_sort(columns: pl.Series, by: Sequence[str], sort: str | None) -> None:
    choices = [*dict.fromkeys(columns), *by, "n"]
    if sort is not None and sort.removeprefix("-") not in choices:
        raise UsageError(f"sort={sort}: {did_you_mean(sort.removeprefix('-'), choices)}")


def _sorted(
    rows: dict[Key, Cells], by: list[str], names: dict[str, str], sort: str | None
) -> list[Key]:
    """The keys in order; those without a value come last, in either direction."""
    column = (sort or "").removeprefix("-")

    def by_names(key: Key) -> tuple[Any, ...]:
        values = [names.get(v, v) if k == "setting" else v for k, v in zip(by, key, strict=True)]
        return tuple((value is None, value) for value in values)

    def value(key: Key) -> Any:
        if column in by:
            return key[by.index(column)]
        if column == "n":
            return max(cell["n"] for cell in rows[key].values())
        return rows[key].get(column, {}).get("mean")

    keys = sorted(rows, key=by_names)
    if sort is None:
        return keys
    valued = [key for key in keys if value(key) is not None]
    rest = [key for key in keys if value(key) is None]
    return sorted(valued, key=value, reverse=sort.startswith("-")) + rest


def _seeds(seeds: list[int]) -> str:
    """0,1,2; more than five as 0..9 or 0,1,..,12."""
    if len(seeds) <= 5:
        return ",".join(map(str, seeds))
    whole = seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]}..{seeds[-1]}" if whole else f"{seeds[0]},{seeds[1]},..,{seeds[-1]}"


def _guess(share: Any) -> str:
    return "" if share is None else percent(share)


def _word(value: Any) -> str:
    return "-" if value is None else text(value)
