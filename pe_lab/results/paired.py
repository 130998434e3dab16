"""Paired comparison of two encodings over seeds. Runs of one seed share their batches and all
weights outside of the encoding, so that paired differences vary less than the errors do."""

from typing import Any

import polars as pl

from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import threshold
from pe_lab.results.groups import defaults_of, named, same, without_idle
from pe_lab.results.statistics import holm, sign_test
from pe_lab.results.table import Kind, by_split, compared_keys, text, without_tuning

SCHEMA: dict[str, Kind] = {
    **dict.fromkeys(("task", "a", "b", "setting_a", "setting_b"), pl.String),
    **dict.fromkeys(("differs", "split"), pl.String),
    "n": pl.Int64,
    "seeds": pl.List(pl.Int64),
    **dict.fromkeys(("errors_a", "errors_b"), pl.List(pl.Float64)),
    "threshold": pl.Float64,
    **dict.fromkeys(("k_a", "k_b"), pl.Int64),
    **dict.fromkeys(("median_a", "median_b"), pl.Float64),
    "difference": pl.Float64,
    **dict.fromkeys(("lower_a", "lower_b"), pl.Int64),
    **dict.fromkeys(("p", "p_holm", "p_least"), pl.Float64),
}


def paired(runs: pl.DataFrame, a: str, b: str) -> pl.DataFrame:
    """Return, for each split, which of two encodings errs less over the seeds that both have.

    Compared are finished runs whose settings are equal except for the encoding, its keys and, for
    runs with the learning rate preset for their encoding, that rate: one row per pair of settings
    and split. Runs on which a suite chose the learning rate are left out.

    Columns: ``task``, ``a``, ``b``, ``setting_a``, ``setting_b``, ``differs`` (the ``labels`` of
    setting_a), ``split``, ``n``, ``seeds`` (those at which both have an error: none where the split
    was too long for one of the two), ``errors_a`` and ``errors_b`` (in the order of ``seeds``),
    ``threshold``, ``k_a`` and ``k_b`` (how many of these errors are up to it), ``median_a``,
    ``median_b``, ``difference`` (median of a - b), ``lower_a`` and ``lower_b`` (at how many seeds
    each side has the lower error), ``p`` (the sign test of these, two-sided), ``p_holm`` (corrected
    over the splits of the pair after Holm), and ``p_least``, the smallest p that n seeds can give:
    2 / 2^n. With one seed there is no p.

    Raises:
        UsageError: the two share no seed in equal settings, or several settings match.

    >>> paired(read_runs("runs", task="flipflop"), "cope", "rope")
    """
    if a == b:
        raise UsageError(f"a={a} b={b} are the same encoding: give two")
    finished = without_tuning(runs.filter(pl.col("state") == "finished"))
    for pe in (a, b):
        if finished.is_empty() or finished.filter(pe=pe).is_empty():
            raise UsageError(f"no finished run of pe={pe} among these: nothing to pair")
    # Task by task, so that splits are in the order of their task.
    tasks = finished.partition_by("task", maintain_order=True)
    errors = pl.concat([by_split(runs, ["error"]) for runs in tasks])
    errors = errors.join(_protocols(finished), on="path", maintain_order="left")
    first, other = errors.filter(pe=a), errors.filter(pe=b)
    shared = ["task", "protocol"]
    for pe, of, others in ((a, first, other), (b, other, first)):
        _check_one_setting(finished.filter(pe=pe), of.join(others, on=shared, how="semi"))
    tests, names = _tests(first, other, shared), named(finished).labels
    rows = [{**row, "a": a, "b": b, "differs": names[row["setting_a"]]} for row in tests]
    if not rows:
        raise UsageError(f"a={a} b={b} share no seed in settings that are otherwise equal")
    return pl.DataFrame(rows, SCHEMA).sort("task", "differs", "setting_a", maintain_order=True)


def paired_entries(rows: pl.DataFrame, a: str, b: str) -> pl.DataFrame:
    """Return the same for two entries of a suite.

    Args:
        rows: their scored runs, one row for each run and split.
    """
    errors = rows.with_columns(setting="entry")
    tests = _tests(errors.filter(entry=a), errors.filter(entry=b), ["task"])
    return pl.DataFrame([{**row, "a": a, "b": b, "differs": ""} for row in tests], SCHEMA)


def _tests(first: pl.DataFrame, other: pl.DataFrame, shared: list[str]) -> list[dict[str, Any]]:
    """Return a test of each task, pair of settings and split, over the seeds that both have.

    Args:
        shared: the columns that are equal on both sides.
    """
    both = first.join(other, on=[*shared, "split", "seed"], suffix="_b", maintain_order="left")
    pairs = _differences(both).group_by("task", "setting_a", "setting_b", maintain_order=True)
    rows: list[dict[str, Any]] = []
    for _, pair in pairs:
        tests = [_test(row) for row in pair.iter_rows(named=True)]
        ps = holm([test["p"] for test in tests])
        rows += [{**test, "p_holm": p} for test, p in zip(tests, ps, strict=True)]
    return rows


def _protocols(finished: pl.DataFrame) -> pl.DataFrame:
    """Return the ``path`` of each run and its ``protocol``: what both sides must share."""
    keys = [key for key in compared_keys(finished) if not key.startswith("pe.")]
    protocols = []
    for run in without_idle(finished).iter_rows(named=True):
        protocol = {key: run[key] for key in keys}
        if same(run["train.lr"], defaults_of(run)["train.lr"]):
            protocol["train.lr"] = "preset"
        protocols.append((run["path"], text(protocol)))
    return pl.DataFrame(protocols, ["path", "protocol"], orient="row")


def _check_one_setting(runs: pl.DataFrame, shared: pl.DataFrame) -> None:
    """Refuse an encoding of which several settings share a protocol with the other side."""
    for settings in shared.group_by("protocol").agg(pl.col("setting").unique())["setting"]:
        firsts = runs.filter(pl.col("setting").is_in(settings.to_list())).unique("setting")
        own = [key for key in runs.columns if key.startswith("pe.")]
        varying = [key for key in own if firsts[key].n_unique() > 1] or ["setting"]
        if len(firsts) > 1:
            pe, key = firsts["pe"][0], varying[0]
            raise UsageError(
                f"pe={pe} has {len(firsts)} settings here that differ in {', '.join(varying)}: "
                f"choose one, where='pe!={pe} or {key}={text(firsts[key][0])}'"
            )


def _differences(both: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each pair of settings and split, over the seeds at which both were
    measured."""
    known = pl.col("error").is_not_null() & pl.col("error_b").is_not_null()
    a, b = (pl.col(column).filter(known) for column in ("error", "error_b"))
    pairs = both.sort("seed", maintain_order=True).rename({"setting": "setting_a"})
    return pairs.group_by("task", "setting_a", "setting_b", "split", maintain_order=True).agg(
        n=known.sum(),
        seeds=pl.col("seed").filter(known),
        errors_a=a,
        errors_b=b,
        median_a=a.median(),
        median_b=b.median(),
        difference=(a - b).median(),
        lower_a=(a < b).sum(),
        lower_b=(a > b).sum(),
    )


def _test(row: dict[str, Any]) -> dict[str, Any]:
    """Add what is counted on either side, and the sign test."""
    limit, n = threshold(row["task"], row["split"]), row["n"]
    for side in "ab" if n else "":
        row[f"k_{side}"] = sum(error <= limit for error in row[f"errors_{side}"])
    p = sign_test(row["lower_a"], row["lower_b"]) if n > 1 else None
    return {**row, "threshold": limit, "p": p, "p_least": 2 / 2**n if n > 1 else None}
