"""Which runs are of the phase ``equal_parameters``: an entry with as many parameters as rope."""

import re

import polars as pl

from pe_lab.results.relative_cost import BASELINE
from pe_lab.results.suite import EQUAL_PARAMETERS, SCORE, TUNING, Suite

_WIDTH = re.compile(r"(\S+) model\.d_ff=\d+")


def with_equal_parameters(rows: pl.DataFrame, suite: Suite) -> pl.DataFrame:
    """The rows, those of runs that differ from an entry in ``model.d_ff`` alone, and have as nearly
    as possible as many parameters as with rope on that task, as runs of that entry in the phase
    ``equal_parameters``. Elsewhere they are an entry, ``cope model.d_ff=251``.

    A folder of runs does not say how many parameters rope has: that is known of all runs together.
    """
    unit = _unit(suite)
    entries = [e for e in rows.filter(phase=SCORE)["entry"].unique() if _WIDTH.fullmatch(e)]
    if unit is None or not entries:
        return rows
    own = pl.col("phase").is_in([TUNING, SCORE]) & (pl.col("entry") == BASELINE)
    rope = rows.filter(own).group_by("task").agg(_rope=pl.col("parameters").max())
    far = (pl.col("parameters") - pl.col("_rope")).abs()
    equal = pl.col("entry").is_in(entries) & (pl.col("phase") == SCORE) & (far <= unit / 2)
    base = pl.col("entry").str.extract(_WIDTH.pattern)
    return (
        rows.join(rope, on="task", how="left", maintain_order="left")
        .with_columns(
            entry=pl.when(equal).then(base).otherwise("entry"),
            phase=pl.when(equal).then(pl.lit(EQUAL_PARAMETERS)).otherwise("phase"),
        )
        .drop("_rope")
    )


def _unit(suite: Suite) -> int | None:
    """The parameters of one unit of ``model.d_ff``: in each layer its weights to and from it and a
    bias; None where the suite's model does not say."""
    words = dict(word.partition("=")[::2] for word in suite.model)
    sizes = [words.get(f"model.{key}", "") for key in ("n_layers", "d_model")]
    if not all(size.isdigit() for size in sizes) or "model.activation" in words:
        return None
    n_layers, width = map(int, sizes)
    return n_layers * (2 * width + 1)
