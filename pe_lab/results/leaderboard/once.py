"""Each run once: which of its results counts, where it is shipped and in a run folder too."""

from typing import Any, overload

import polars as pl

from pe_lab.common.output import counted

_RUN = ("task", "entry", "phase", "lr", "steps", "seed", "seed_init")


@overload
def precedence(finished: bool, shipped: bool) -> int: ...
@overload
def precedence(finished: pl.Expr, shipped: pl.Expr) -> pl.Expr: ...
def precedence(finished: Any, shipped: Any) -> Any:
    """The result of a run with the lowest number counts, of equal ones the first: finished ones
    before failed ones, then shipped ones before those of run folders.

    A table that everybody sees then stays as it is where somebody makes a shipped run again on
    another machine; ``shipped=false`` takes run folders alone.
    """
    return 3 - 2 * finished - 1 * shipped


def once(shipped: pl.DataFrame, others: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The rows of both, each run once by ``precedence``, with ``shipped``; and what was left out
    because it has other results."""
    notes = []
    rows = pl.concat(
        [shipped.with_columns(shipped=pl.lit(True)), others.with_columns(shipped=pl.lit(False))]
    )
    finished = pl.col("state") == "finished"
    ranked = rows.sort(precedence(finished, pl.col("shipped")), maintain_order=True)
    first = ranked.unique(["run_id", "split"], keep="first", maintain_order=True)
    again = ranked.filter(finished).join(
        first.filter(finished).select("run_id", "split", first_error="error"),
        on=["run_id", "split"],
    )
    other = again.filter(pl.col("error").ne_missing(pl.col("first_error")))["run_id"].unique()
    if len(other):
        notes.append(
            f"{counted(len(other), 'run')} with two results, of which the shipped one counts: "
            + ", ".join(sorted(other)[:3])
            + (", .." if len(other) > 3 else "")
        )
    several = first.unique(["run_id"], keep="first", maintain_order=True)
    kept = several.unique([*_RUN], keep="first", maintain_order=True)
    if len(kept) < len(several):
        n = len(several) - len(kept)
        notes.append(f"{counted(n, 'run')} of an entry and seed that another run has: not counted")
        first = first.join(kept.select("run_id"), on="run_id", how="semi")
    return first, notes
