"""The tables of ``pe-lab results`` and the notes below them; a cell has success rate, median, mean
and spread over seeds."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

import polars as pl

from pe_lab.core.console import percent
from pe_lab.core.metrics import IN_DOMAIN, OOD, is_share
from pe_lab.core.output import counted
from pe_lab.core.suggest import check_known
from pe_lab.core.test_time import LEGEND, MARK, TEST_TIME
from pe_lab.results.aggregate import SETTING, pooled
from pe_lab.results.labels import Names, aliases
from pe_lab.results.leaderboard.entries import TUNING_OF, tuning
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.reader import text
from pe_lab.results.statistics.seeds import mean_rate
from pe_lab.results.suite import DEFAULT

Spread = Literal["rates", "sd"]
CLUSTERS = "‡"
"""Marks a cell whose seeds fall into two clusters."""
CLUSTERED = f"{CLUSTERS}: seeds in two clusters."


def cell_text(cell: dict[str, Any] | None, n: int, metric: str, spread: Spread) -> Cell:
    """A cell of a table.

    Args:
        cell: a row of ``aggregate.grouped``. None for an empty cell.
        n: the seeds of the table's row; shown where those of the cell are fewer.
    """
    if cell is None:
        return Cell("")
    if cell["not_finite"]:
        return Cell("not finite")
    if not cell["n"]:
        return Cell("n/a")
    if spread == "rates" and cell["n"] > 1 and cell.get("threshold") is not None:
        # Where all seeds agree, the median says it.
        mean = "" if cell["sd"] == 0 else f"({_mean(cell, metric)})"
        return Cell(_rates(cell), cell["best"], mean)
    text = _mean(cell, metric) + (CLUSTERS if cell["clusters"] else "")
    return Cell(text if cell["n"] == n else f"{text} n={cell['n']}", cell["best"])


def _rates(cell: dict[str, Any]) -> str:
    """``6/8 0.31``: k of n, and the median."""
    mark = CLUSTERS if cell["clusters"] else ""
    return f"{cell['k']}/{cell['n']}{mark} {percent(cell['median'])}"


def _mean(cell: dict[str, Any], metric: str) -> str:
    mean, sd = cell["mean"], cell["sd"]
    digits = 3
    if is_share(metric):
        # As many for all as the mean needs: 0.03 is not 0.
        digits = 2 if 0 < mean < 0.1 else 1
        mean, sd = 100 * mean, None if sd is None else 100 * sd
    return f"{mean:.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")


def has_rates(table: pl.DataFrame, spread: Spread) -> bool:
    """Whether a cell of the table shows k/n."""
    if spread != "rates" or "threshold" not in table.columns:
        return False
    return table.filter(pl.col("n") > 1)["threshold"].count() > 0


def how_to_read(table: pl.DataFrame, spread: Spread) -> str:
    """The caption of a table with these cells."""
    if (table["n"] <= 1).all():
        return "One run per row: the spread over seeds is unknown."
    over = "seeds" if (table["settings"] == 1).all() else "runs"
    if has_rates(table, spread):
        return f"k/n: {over} with an error up to the threshold; median; mean ± sd over {over}."
    return f"Mean ± sd over {over}."


def thresholds(table: pl.DataFrame) -> str:
    """``2 % (in_domain: 1 %)``: the thresholds of the splits, the most frequent first."""
    of_split = dict(table.select("split", "threshold").unique(maintain_order=True).iter_rows())
    inside = of_split.pop(IN_DOMAIN, None)
    shown = {split: f"{100 * limit:.6g} %" for split, limit in of_split.items()}
    values: Sequence[str] = list(shown.values())
    first = max(dict.fromkeys(values), key=values.count, default="")
    others = [f"{split}: {text}" for split, text in shown.items() if text != first]
    if inside is not None and f"{100 * inside:.6g} %" != first:
        others.insert(0, f"{IN_DOMAIN}: {100 * inside:.6g} %")
    if not first:
        return others[0].removeprefix(f"{IN_DOMAIN}: ")
    return f"{first} ({', '.join(others)})" if others else first


BEST_RATE = "the highest k/n, its Wilson interval above those of all lower ones."
BEST = "the lowest mean; each of its seeds is below all others."
HEADINGS = {"pe": "encoding", OOD: "OOD mean"}
Key = tuple[Any, ...]
Cells = dict[str, dict[str, Any]]
"""column -> a row of ``grouped``."""


@dataclass(frozen=True)
class Layout:
    """How groups become a table.

    Args:
        by: the keys that make a row.
        metric: what the cells are of.
        spread: what a cell shows: rates (k of n generalise, median, mean and sd), or the mean with
            its sd.
        sort: a split, n or a key of ``by``, after - for descending; None: where there are rates,
            the highest mean rate over the splits out of domain and on a tie the lowest mean, else
            the lowest mean out of domain where it is a column, else these keys.
        across: the key that makes the columns; with length, there is a table for each task and
            split.
    """

    by: Sequence[str] = SETTING
    metric: str = "error"
    spread: Spread = "rates"
    sort: str | None = None
    across: str = "split"


def tables(groups: pl.DataFrame, names: Names, layout: Layout) -> list[Table]:
    """A table for each task of ``groups``, as ``grouped`` and ``grouped_evaluations`` make them.

    Raises:
        UsageError: ``sort`` names no column.
    """
    groups = groups.with_columns(pl.col(layout.across).cast(pl.String))
    if layout.sort is not None:
        choices = [*groups[layout.across].unique(maintain_order=True), *layout.by, "n"]
        words = "sort=-{}" if layout.sort.startswith("-") else "sort={}"
        check_known(words, [layout.sort.removeprefix("-")], choices)
    of_table = ["task"] if layout.across == "split" else ["task", "split"]
    return [
        _table(part, ", ".join(map(str, title)), names, layout)
        for title, part in groups.group_by(of_table, maintain_order=True)
    ]


def with_differs(groups: pl.DataFrame, names: Names) -> pl.DataFrame:
    """With what each setting is called, behind it."""
    if "setting" not in groups.columns:
        return groups
    lines = [names.labels.get(setting) for setting in groups["setting"]]
    at = groups.columns.index("setting") + 1
    return groups.insert_column(at, pl.Series("differs", lines, pl.String))


def _table(table: pl.DataFrame, title: str, names: Names, layout: Layout) -> Table:
    rows: dict[Key, Cells] = {}
    for cell in table.iter_rows(named=True):
        rows.setdefault(tuple(cell[key] for key in layout.by), {})[cell[layout.across]] = cell
    columns = list(dict.fromkeys(table[layout.across]))
    rates = has_rates(table, layout.spread)
    outside = [split for split in columns if split not in (IN_DOMAIN, OOD)] if rates else []
    if layout.sort is None and layout.across == "split" and OOD in columns and not outside:
        layout = replace(layout, sort=OOD)
    labels: dict[str, str] = {}
    legend = ""
    if "setting" in layout.by:
        labels, legend = aliases({s: names.labels.get(s, "") for s in table["setting"]})
        if shared := names.shared.get(table["task"][0]):
            legend = f"All rows: {shared}  {legend}".strip()
    words = _word_columns(rows, labels, layout)
    lines = []
    for key in _sorted(rows, labels, layout, outside):
        n = _n(rows[key])
        numbers = [cell_text(rows[key].get(c), n, layout.metric, layout.spread) for c in columns]
        lines.append([*(Cell(column(key, rows[key])) for column in words.values()), *numbers])
    closing = {"guessing": "guess"} if layout.metric == "error" else {}
    closing |= {"threshold": "threshold"} if rates else {}
    unit = " in %" if is_share(layout.metric) else ""
    marked = any(_mark(*pair) for key in rows for pair in zip(layout.by, key, strict=True))
    return Table(
        title=f"{title}: {layout.metric}{unit}",
        columns=[*words, *(HEADINGS.get(column, column) for column in columns)],
        words=len(words),
        rows=lines,
        caption=how_to_read(table, layout.spread) + (f" {LEGEND}" if marked else ""),
        legend=legend,
        best=BEST_RATE if rates else BEST,
        marks=CLUSTERED if table["clusters"].any() else "",
        closing=[
            list(map(Cell, (f"({name})", *[""] * (len(words) - 1), *_shares(table, layout, share))))
            for name, share in closing.items()
        ],
    )


def _word_columns(
    rows: dict[Key, Cells], labels: dict[str, str], layout: Layout
) -> dict[str, Callable[[Key, Cells], str]]:
    """The columns before those of the splits: heading -> the text of a row.

    To add a column to the tables, add an entry here; its values come from ``grouped``.
    """

    def of_key(at: int, name: str) -> Callable[[Key, Cells], str]:
        if name == "setting":
            return lambda key, cells: labels.get(key[at], "")
        return lambda key, cells: _word(key[at]) + _mark(name, key[at])

    # Each heading once: evaluations have the encoding at test time, too.
    found = {
        name if HEADINGS.get(name) in layout.by else HEADINGS.get(name, name): of_key(at, name)
        for at, name in enumerate(layout.by)
        # Settings that differ only in the encoding need no second column.
        if name != "setting" or any(labels.values())
    }
    found["n"] = lambda key, cells: str(_n(cells))
    # Seeds from 0 on need no column beside n.
    if any(seeds != list(range(len(seeds))) for seeds in map(_seeds, rows.values())):
        found["seeds"] = lambda key, cells: _seeds_text(_seeds(cells))
    return found


def _n(cells: Cells) -> int:
    return max(int(cell["n"]) for cell in cells.values())


def _seeds(cells: Cells) -> list[int]:
    return sorted({seed for cell in cells.values() for seed in cell["seeds"]})


def _sorted(
    rows: dict[Key, Cells], labels: dict[str, str], layout: Layout, outside: Sequence[str]
) -> list[Key]:
    """The keys in order; those without a value come last, in either direction.

    Args:
        outside: the splits whose rates make the order where the layout has none.
    """
    by, sort = list(layout.by), layout.sort
    column = (sort or "").removeprefix("-")

    def by_names(key: Key) -> tuple[Any, ...]:
        values = [labels.get(v, v) if k == "setting" else v for k, v in zip(by, key, strict=True)]
        return tuple((value is None, value) for value in values)

    def value(key: Key) -> Any:
        if column in by:
            return key[by.index(column)]
        if column == "n":
            return _n(rows[key])
        return rows[key].get(column, {}).get("mean")

    keys = sorted(rows, key=by_names)
    if sort is None:
        return sorted(keys, key=lambda key: _by_rate(rows[key], outside)) if outside else keys
    valued = [key for key in keys if value(key) is not None]
    rest = [key for key in keys if value(key) is None]
    return sorted(valued, key=value, reverse=sort.startswith("-")) + rest


def _by_rate(cells: Cells, outside: Sequence[str]) -> tuple[Any, ...]:
    """The place of a row: from the highest mean rate over these splits, on a tie from the lowest
    mean, then from the lowest in-domain error; last where it lacks one of them."""
    if not cells.keys() >= {*outside}:
        return True, 0, 0.0, 0.0
    found = [cells[split] for split in outside]
    rate = mean_rate((cell["k"], cell["n"]) for cell in found)
    if rate is None:
        return True, 0, 0.0, 0.0
    mean = cells[OOD]["mean"] if OOD in cells else fmean(cell["mean"] for cell in found)
    return False, -rate, mean, cells.get(IN_DOMAIN, {}).get("mean") or 0.0


def _seeds_text(seeds: list[int]) -> str:
    """0,1,2; more than five as 0..9 or 0,1,..,12."""
    if len(seeds) <= 5:
        return ",".join(map(str, seeds))
    whole = seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]}..{seeds[-1]}" if whole else f"{seeds[0]},{seeds[1]},..,{seeds[-1]}"


def _shares(table: pl.DataFrame, layout: Layout, share: str) -> list[str]:
    """The mean of a column of shares in each column of the table, in %."""
    means = table.group_by(layout.across, maintain_order=True).agg(pl.col(share).mean())[share]
    return ["" if mean is None else percent(mean) for mean in means]


def _mark(key: str, value: Any) -> str:
    return MARK if key == "pe" and value in TEST_TIME else ""


def _word(value: Any) -> str:
    return "-" if value is None else text(value)


def pooled_keys_note(runs: pl.DataFrame, by: Sequence[str]) -> list[str]:
    """What is ``pooled`` in a row, if anything is."""
    found = pooled(runs, by)
    if not found:
        return []
    keys = ", ".join(
        f"{key} ({', '.join(map(text, values[:5]))}{', ..' if len(values) > 5 else ''})"
        for key, values in found.items()
    )
    return [
        f"by={','.join(by)} pools runs that differ in {keys}: the spread is not one over seeds "
        "alone; add these keys to by, or give them a value"
    ]


def pooled_note(runs: pl.DataFrame, by: Sequence[str], where: str | None) -> list[str]:
    """How many of these runs share a row of a table with others, and what leaves them out; empty
    where none does.

    Args:
        by: the keys whose values make a row; those that are none of the runs' make no difference.
        where: the condition that selected the runs.
    """
    finished = runs.filter(pl.col("state") == "finished")
    group = ["task", *(key for key in by if key in runs.columns)]
    of_tuning = tuning(finished.filter(pl.col(TUNING_OF).is_null().any().over(group)))
    if of_tuning.is_empty():
        return []
    alone = f"{TUNING_OF}=null"
    without = f'"{alone}"' if where is None else shlex.quote(f"({where}) and {alone}")
    names = of_tuning[TUNING_OF].unique().sort()
    commands = [f"pe-lab leaderboard{'' if n == DEFAULT else f' suite={n}'}" for n in names]
    return [
        f"rows pool {_described(of_tuning)} with others: where={without} leaves them out, "
        f"{', '.join(commands)} keeps them apart"
    ]


def left_out_note(left: pl.DataFrame) -> list[str]:
    """How many runs were left out, and why; empty for none."""
    return [f"left out: {_described(left)}"] if len(left) else []


def _described(runs: pl.DataFrame) -> str:
    """``4 runs (seeds 1000,1001) by whose errors suite v1 chose the learning rate``."""
    seeds, names = (runs[key].unique().sort().to_list() for key in ("seed", TUNING_OF))
    return (
        f"{counted(len(runs), 'run')} (seeds {','.join(map(str, seeds))}) by whose errors suite "
        f"{', '.join(names)} chose the learning rate"
    )
