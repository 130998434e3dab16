"""Tables of groups of runs: a row for each encoding and setting, a column for each split or length.
A cell has the success rate and the median error over seeds, or mean and standard deviation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import polars as pl

from pe_lab.core.config_dir import TEST_TIME
from pe_lab.core.console import percent
from pe_lab.core.errors import check_known, counted
from pe_lab.core.metrics import IN_DOMAIN, OOD, SHARES
from pe_lab.results.format import Format, Table
from pe_lab.results.groups import SETTING, Names
from pe_lab.results.table import TUNING_OF, text, tuning

Spread = Literal["rates", "sd"]
HEADINGS = {"pe": "encoding"}
CELL = "cell "
BEST_RATE = "* or bold: the highest k/n; its Wilson interval lies above those of all lower ones."
BEST = "* or bold: the lowest mean; each of its seeds lies below all others."


@dataclass(frozen=True)
class Layout:
    """How groups become a table.

    Args:
        by: the keys that make a row.
        metric: what the cells are of.
        spread: what a cell shows: rates (k of n seeds generalise, and the median), or the mean with
            its sd.
        sort: a split, n or a key of ``by``, after - for descending; None: where there are rates,
            the highest mean rate over the splits out of domain and on a tie the lowest mean, else
            the lowest mean out of domain where it is a column, else these keys.
        across: the key that makes the columns; with length, there is a table for each task and
            split.
        as_measured: whether rows stay in the order of the groups where ``sort`` is None.
    """

    by: Sequence[str] = SETTING
    metric: str = "error"
    spread: Spread = "rates"
    sort: str | None = None
    across: str = "split"
    as_measured: bool = False


def tables(groups: pl.DataFrame, names: Names, layout: Layout) -> list[Table]:
    """Return a table for each task of ``groups``, as ``grouped`` and ``grouped_evaluations`` make
    them.

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
    """Insert the column ``differs``, the label of each setting, behind it."""
    if "setting" not in groups.columns:
        return groups
    lines = [names.labels.get(setting) for setting in groups["setting"]]
    at = groups.columns.index("setting") + 1
    return groups.insert_column(at, pl.Series("differs", lines, pl.String))


def _table(part: pl.DataFrame, title: str, names: Names, layout: Layout) -> Table:
    by, across = list(layout.by), pl.col(layout.across)
    columns = list(dict.fromkeys(part[layout.across]))
    # Apart from the other columns: a split may be named n or pe.
    heads = {CELL + column: "OOD mean" if column == OOD else column for column in columns}
    rated = (
        (pl.col("n") > 1) & pl.col("threshold").is_not_null()
        if layout.spread == "rates" and "threshold" in part.columns
        else pl.lit(value=False)
    )
    rates = part.select(rated.any()).item()
    most = pl.col("n").max().over(by)
    cell = pl.struct("n", "k", "median", "mean", "sd", "best", "not_finite", most.alias("most"))
    part = part.with_columns(cell=cell.struct.with_fields(rated=rated))
    splits = [column for column in columns if column not in (IN_DOMAIN, OOD)]
    ood, mean = across.is_in(splits), pl.col("mean")
    # Null, and so last, where a split was not measured; in tables of evaluations k is a scale.
    of_splits = (pl.col("k") / pl.col("n")).filter(ood & ("threshold" in part.columns))
    ood_rate = pl.when(of_splits.count() == len(splits)).then(of_splits.mean().round(12))
    ood_mean = mean.filter(across == OOD) if OOD in columns else mean.filter(ood)
    wide = part.group_by(by, maintain_order=True).agg(
        *(pl.col("cell").filter(across == c).first().alias(CELL + c) for c in columns),
        n=pl.col("n").max(),
        seeds="seeds",
        ood_rate=ood_rate,
        _ood=ood_mean.mean(),
        _in_domain=mean.filter(across == IN_DOMAIN).first().fill_null(0.0),
    )
    if "setting" in by:
        wide = wide.with_columns(pl.col("setting").replace_strict(names.labels, default=None))
    wide = _sorted(wide, layout, by_rate=rates and bool(splits))
    # Settings that differ only in the encoding need no second column, and seeds from 0 on neither.
    words = [key for key in by if key != "setting" or any(wide["setting"])]
    seeds = [sorted({seed for cell in cells for seed in cell}) for cells in wide["seeds"].to_list()]
    consecutive = all(of_row == list(range(len(of_row))) for of_row in seeds)
    wide = wide.with_columns(
        pl.Series("seeds", seeds),
        *(pl.Series(key, ["-" if v is None else text(v) for v in wide[key]]) for key in words),
    )
    formats: dict[str, Format] = {**dict.fromkeys(words, str), "n": str}
    formats |= {} if consecutive else {"seeds": seeds_text}
    unit = " in %" if layout.metric in SHARES else ""
    shared = names.shared.get(part["task"][0]) if "setting" in by else None
    return Table(
        wide,
        formats | dict.fromkeys(heads, partial(cell_text, metric=layout.metric)),
        f"{title}: {layout.metric}{unit}",
        tuple(_notes(part, shared, rates, layout)),
        heads | {k: v for k, v in HEADINGS.items() if v not in by},
    )


def _notes(part: pl.DataFrame, shared: str | None, rates: bool, layout: Layout) -> Iterable[str]:
    if shared:
        yield f"All rows: {shared}."
    over = "seeds" if (part["settings"] == 1).all() else "runs"
    if (part["n"] <= 1).all():
        yield "One run per row: the spread over seeds is unknown."
    elif rates:
        yield f"k/n: {over} with an error up to the threshold; then the median of all n."
        yield f"Threshold: {shares_text(part, 'threshold', layout.across)}."
    else:
        yield f"Mean ± sd over {over}."
    if over == "runs":
        yield "Runs of several settings share a row: add the keys in which they differ to by."
    if layout.metric == "error":
        yield f"Guessing: {shares_text(part, 'guess', layout.across, 2)}."
    if part["best"].any():
        yield BEST_RATE if rates else BEST
    if "pe" in part.columns and (at_test := sorted({*part["pe"]} & TEST_TIME)):
        names = ", ".join(at_test)
        yield f"Made for a trained rope at test time, here trained: {names}."


def cell_text(cell: dict[str, Any], metric: str) -> str:
    """Write a cell: ``6/8 0.31``, k of n and the median, or ``1.05 ± 0.20``."""
    if cell["not_finite"]:
        return "not finite"
    if not cell["n"]:
        return "n/a"
    if cell["rated"]:
        return f"{cell['k']}/{cell['n']} {percent(cell['median'])}"
    mean, sd, digits = cell["mean"], cell["sd"], 3
    if metric in SHARES:
        # As many digits for both as the mean needs: 0.03 is not 0.
        digits = 2 if 0 < mean < 0.1 else 1
        mean, sd = 100 * mean, None if sd is None else 100 * sd
    written = f"{mean:.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")
    return written if cell["n"] == cell["most"] else f"{written} n={cell['n']}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Write 0,1,2; more than five as 0..9 or 0,1,..,12."""
    if len(seeds) <= 5:
        return ",".join(map(str, seeds))
    whole = seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]}..{seeds[-1]}" if whole else f"{seeds[0]},{seeds[1]},..,{seeds[-1]}"


def shares_text(part: pl.DataFrame, share: str, across: str = "split", digits: int = 3) -> str:
    """Write a share of each split: ``2 % (in_domain: 1 %)``, the most frequent first."""
    means = part.group_by(across, maintain_order=True).agg(pl.col(share).mean()).drop_nulls()
    # The second g writes 100 and not 1e+02.
    written = {
        split: f"{float(f'{100 * mean:.{digits}g}'):g} %" for split, mean in means.iter_rows()
    }
    values = [value for split, value in written.items() if split != IN_DOMAIN]
    first = max(
        values or written.values(), key=(values or [*written.values()]).count, default="unknown"
    )
    others = [f"{split}: {value}" for split, value in written.items() if value != first]
    return f"{first} ({', '.join(others)})" if others else first


def _sorted(wide: pl.DataFrame, layout: Layout, by_rate: bool) -> pl.DataFrame:
    """Return the rows in order; those without a value come last, in either direction."""
    if layout.sort is None and layout.as_measured:
        return wide
    wide = wide.sort([pl.col(key) for key in layout.by], nulls_last=True)
    name = (layout.sort or "").removeprefix("-")
    # A table without this split keeps its own order.
    if (is_key := name in (*layout.by, "n")) or CELL + name in wide.columns:
        column = pl.col(name) if is_key else pl.col(CELL + name).struct.field("mean")
        return wide.sort(
            column, descending=name != layout.sort, nulls_last=True, maintain_order=True
        )
    if by_rate:
        rate = -pl.col("ood_rate")
        return wide.sort(rate, "_ood", "_in_domain", nulls_last=True, maintain_order=True)
    return (
        wide.sort("_ood", nulls_last=True, maintain_order=True)
        if CELL + OOD in wide.columns
        else wide
    )


def tuning_note(runs: pl.DataFrame) -> list[str]:
    """Say how many of these runs chose a learning rate."""
    of_tuning = tuning(runs)
    return [f"with {tuning_text(of_tuning)}: tuning_of=null leaves them out"] * bool(len(of_tuning))


def tuning_text(runs: pl.DataFrame) -> str:
    """Write ``4 runs (seeds 1000,1001) by whose errors suite v2 chose the learning rate``."""
    seeds, suites = (runs[key].unique().sort().to_list() for key in ("seed", TUNING_OF))
    return (
        f"{counted(len(runs), 'run')} (seeds {','.join(map(str, seeds))}) by whose errors suite "
        f"{', '.join(suites)} chose the learning rate"
    )
