"""Su's table of length extrapolation (kexue.fm 9708) and ours: accuracies, and their order."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.published import Extrapolated, extrapolated
from pe_lab.results.statistics.seeds import over_seeds

TEXT = {
    IN_DOMAIN: "as trained",
    "repeated_x8": "8 x, repeated",
    "long_x8": "8 x, not repeated",
}
NEEDLE = {IN_DOMAIN: "as trained", "long_x4": "4 x", "long_x8": "8 x", "long_x16": "16 x"}
SPLITS = {"text": TEXT, "needle": NEEDLE}
"""The splits of a task's table; of text in the order of Su's figures."""
THEIRS = {IN_DOMAIN: IN_DOMAIN, "repeated_x8": "repeated", "long_x8": "other"}
"""Their names in published.yaml."""
ORDER = ("rerope + logn", "ntk_mixed + logn", "ntk_fixed", "rope", "pi")
"""Su's order beyond the trained length, best first."""

Place = tuple[str, str]
"""A row and a split."""
Accuracies = Mapping[Place, Sequence[float]]
"""A share for each seed, in the same order everywhere."""


def published_accuracy(row: Extrapolated, split: str) -> float | None:
    """Su's accuracy in %, None where his table has none."""
    number = row.published.get(THEIRS[split])
    return None if number is None else round(100 * (1 - number.error), 2)


def extrapolation_tables(measured: Accuracies, task: str = "text") -> list[Table]:
    """The accuracies; of text beside Su's, and whether each order of his is found."""
    if task == "text":
        return [_beside_su(measured), _orders(measured)]
    splits = SPLITS[task]
    lines = [
        [Cell(row.pe), *(Cell(_percent(measured[row.pe, split])) for split in splits)]
        for row in extrapolated()
    ]
    caption = "mean ± standard deviation over seeds; no source has this table."
    return [Table("accuracy in %", ["encoding", *splits.values()], 1, lines, caption)]


def _beside_su(measured: Accuracies) -> Table:
    columns = ["encoding"]
    for name in TEXT.values():
        columns += [name, "Su"]
    lines = []
    for row in extrapolated():
        cells = [Cell(row.pe)]
        for split in TEXT:
            theirs = published_accuracy(row, split)
            cells += [Cell(_percent(measured[row.pe, split]))]
            cells += [Cell("-" if theirs is None else f"{theirs:.2f}")]
        lines.append(cells)
    caption = (
        "mean ± standard deviation over seeds; Su: 100 M parameters trained at 512 tokens on "
        "another text with another vocabulary: compare orders, not numbers."
    )
    return Table("accuracy in %", columns, 1, lines, caption)


def _orders(measured: Accuracies) -> Table:
    rows = {row.pe: row for row in extrapolated()}
    lines = []
    for better, worse in _compared():
        theirs = [published_accuracy(rows[row], split) for row, split in (better, worse)]
        assert theirs[0] is not None
        assert theirs[1] is not None
        sign = 1 if theirs[0] > theirs[1] else -1
        pairs = zip(measured[better], measured[worse], strict=True)
        gaps = [100 * (ours - others) for ours, others in pairs]
        agreeing = sum(gap * sign > 0 for gap in gaps)
        mean = fmean(gaps)
        verdict = "agrees" if mean * sign > 0 else "disagrees" if mean else "no difference"
        same = better[1] == worse[1]
        where = TEXT[worse[1]] if same else f"{TEXT[better[1]]} > {TEXT[worse[1]]}"
        lines.append(
            [
                Cell(f"{better[0]} > {worse[0]}" if same else better[0]),
                Cell(where),
                Cell(f"{theirs[0] - theirs[1]:+.2f}"),
                Cell(f"{mean:+.2f}"),
                Cell(f"{verdict}, {agreeing} of {len(gaps)} seeds"),
            ]
        )
    caption = "differences of accuracy in %; a seed counts where its difference has Su's sign."
    return Table("Su's orders", ["order", "where", "Su", "ours", "verdict"], 2, lines, caption)


def _compared() -> list[tuple[Place, Place]]:
    """Pairs of which the first is the greater in Su's table."""
    beyond = list(TEXT)[1:]
    falls: list[tuple[Place, Place]] = [(("rope", IN_DOMAIN), ("rope", s)) for s in beyond]
    orders: list[tuple[Place, Place]] = [
        ((better, split), (worse, split)) for split in beyond for better, worse in pairwise(ORDER)
    ]
    return falls + orders


def _percent(shares: Sequence[float]) -> str:
    spread = over_seeds([100 * share for share in shares])
    return f"{spread['mean']:.2f}" + (f" ± {spread['sd']:.2f}" if spread["n"] > 1 else "")
