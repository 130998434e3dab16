"""Su's table of length extrapolation beside ours: accuracy by encoding, and the order of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from statistics import fmean

import yaml

from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.results.intervals import over_seeds
from pe_lab.results.tables import Cell, Sheet

SPLITS = {
    IN_DOMAIN: "as trained",
    "repeated_x8": "8 x, repeated",
    "long_x8": "8 x, not repeated",
}
"""The splits of the table, in the order of Su's figures."""
ORDER = ("rerope + logn", "ntk_mixed + logn", "ntk_fixed", "rope", "pi")
"""What he found, best first, beyond the trained length."""

Place = tuple[str, str]
"""A row and a split."""
Accuracies = Mapping[Place, Sequence[float]]
"""A share for each seed, in the same order everywhere."""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        trained: the run that it is a change of.
        encoding: what is put in place, in the words of ``pe-lab eval``; None: nothing.
        published: accuracy in %, by ``SPLITS``.
    """

    row: str
    trained: str
    encoding: str | None = None
    published: Sequence[float] | None = None

    def figure(self, split: str) -> float | None:
        """What Su has for a split."""
        return None if self.published is None else self.published[list(SPLITS).index(split)]


@cache
def rows() -> tuple[Row, ...]:
    """All of su.yaml."""
    text = files("pe_lab.evaluation").joinpath("su.yaml").read_text("utf-8")
    return tuple(Row(**entry) for entry in yaml.safe_load(text))


def sheets(measured: Accuracies) -> list[Sheet]:
    """The table with his figures beside ours, and each of his orders with whether it is found."""
    return [_table(measured), _orders(measured)]


def _table(measured: Accuracies) -> Sheet:
    columns = ["encoding"]
    for name in SPLITS.values():
        columns += [name, "Su"]
    lines = []
    for row in rows():
        cells = [Cell(row.row)]
        for split in SPLITS:
            theirs = row.figure(split)
            cells += [Cell(_percent(measured[row.row, split]))]
            cells += [Cell("-" if theirs is None else f"{theirs:.2f}")]
        lines.append(cells)
    caption = (
        "mean ± standard deviation over seeds; Su: 100 M parameters trained at 512 tokens, a text "
        "and a vocabulary of his own, so that orders compare, not numbers."
    )
    return Sheet("accuracy in %", columns, 1, lines, caption)


def _orders(measured: Accuracies) -> Sheet:
    known = {row.row: row for row in rows()}
    lines = []
    for better, worse in _compared():
        theirs = [known[row].figure(split) for row, split in (better, worse)]
        assert theirs[0] is not None
        assert theirs[1] is not None
        sign = 1 if theirs[0] > theirs[1] else -1
        pairs = zip(measured[better], measured[worse], strict=True)
        gaps = [100 * (ours - others) for ours, others in pairs]
        found = sum(gap * sign > 0 for gap in gaps)
        mean = fmean(gaps)
        verdict = "agrees" if mean * sign > 0 else "disagrees" if mean else "no difference"
        same = better[1] == worse[1]
        where = SPLITS[worse[1]] if same else f"{SPLITS[better[1]]} > {SPLITS[worse[1]]}"
        lines.append(
            [
                Cell(f"{better[0]} > {worse[0]}" if same else better[0]),
                Cell(where),
                Cell(f"{theirs[0] - theirs[1]:+.2f}"),
                Cell(f"{mean:+.2f}"),
                Cell(f"{verdict}, {found} of {len(gaps)} seeds"),
            ]
        )
    caption = "differences of accuracy in %; a seed counts where its difference has Su's sign."
    return Sheet("Su's orders", ["order", "where", "Su", "ours", "verdict"], 2, lines, caption)


def _compared() -> list[tuple[Place, Place]]:
    """What should be greater, and than what."""
    beyond = list(SPLITS)[1:]
    falls: list[tuple[Place, Place]] = [(("rope", IN_DOMAIN), ("rope", s)) for s in beyond]
    orders: list[tuple[Place, Place]] = [
        ((better, split), (worse, split)) for split in beyond for better, worse in pairwise(ORDER)
    ]
    return falls + orders


def _percent(shares: Sequence[float]) -> str:
    spread = over_seeds([100 * share for share in shares])
    return f"{spread.mean:.2f}" + (f" ± {spread.sd:.2f}" if spread.n > 1 else "")
