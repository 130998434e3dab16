"""Paired comparison of two encodings over seeds. Runs of one seed share their batches and all
weights outside of the encoding, so that paired differences vary less than the errors do."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import polars as pl

from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import metric_name
from pe_lab.results.frame import compared_keys, splits_of
from pe_lab.results.labels import labels, without_idle
from pe_lab.results.leaderboard.entries import without_tuning
from pe_lab.results.reader import defaults_of, same, text
from pe_lab.results.statistics.across_tasks import holm, sign_test
from pe_lab.results.statistics.seeds import two_clusters
from pe_lab.results.suite import threshold

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("task", "a", "b", "setting_a", "setting_b"), pl.String),
    **dict.fromkeys(("differs", "split"), pl.String),
    "n": pl.Int64,
    "seeds": pl.List(pl.Int64),
    **dict.fromkeys(("errors_a", "errors_b"), pl.List(pl.Float64)),
    "threshold": pl.Float64,
    **dict.fromkeys(("k_a", "k_b"), pl.Int64),
    **dict.fromkeys(("median_a", "median_b"), pl.Float64),
    **dict.fromkeys(("clusters_a", "clusters_b"), pl.Boolean),
    "difference": pl.Float64,
    **dict.fromkeys(("lower_a", "lower_b"), pl.Int64),
    **dict.fromkeys(("p", "p_holm", "p_least"), pl.Float64),
}


def paired(runs: pl.DataFrame, a: str, b: str) -> pl.DataFrame:
    """For each split, which of two encodings errs less over the seeds that both have.

    Compared are finished runs whose settings are equal except for the encoding, its keys and, for
    runs with the learning rate preset for their encoding, that rate: one row per pair of settings
    and split. Runs on which a suite chose the learning rate are left out.

    Columns: ``task``, ``a``, ``b``, ``setting_a``, ``setting_b``, ``differs`` (the ``labels`` of
    setting_a), ``split``, ``n``, ``seeds`` (those at which both have an error: none where the split
    was too long for one of the two), ``errors_a`` and ``errors_b`` (in the order of ``seeds``),
    ``threshold``, ``k_a`` and ``k_b`` (how many of these errors are up to it), ``median_a``,
    ``median_b``, ``clusters_a`` and ``clusters_b`` (whether they fall into two clusters),
    ``difference`` (median of a - b), ``lower_a`` and ``lower_b`` (at how many seeds each side has
    the lower error), ``p`` (the sign test of these, two-sided), ``p_holm`` (corrected over the
    splits of the pair after Holm), and ``p_least``, the smallest p that n seeds can give: 2 / 2^n.
    With one seed there is no p.

    Raises:
        UsageError: the two share no seed in equal settings, or several settings match.

    >>> paired(read_runs("runs", task="flipflop"), "cope", "rope")
    """
    if a == b:
        raise UsageError(f"a={a} b={b} are the same encoding: give two")
    finished = without_tuning(runs.filter(pl.col("state") == "finished")) if len(runs) else runs
    sides = {pe: _side(finished, pe) for pe in (a, b)}
    for pe, settings in sides.items():
        if not settings:
            raise UsageError(f"no finished run of pe={pe} among these: nothing to pair")
    names = labels(finished)
    rows: list[dict[str, Any]] = []
    for key in sides[a].keys() & sides[b].keys():
        of_a, of_b = _only(a, sides[a][key]), _only(b, sides[b][key])
        if seeds := sorted(of_a.keys() & of_b.keys()):
            runs_a, runs_b = [of_a[seed] for seed in seeds], [of_b[seed] for seed in seeds]
            setting_a, task = runs_a[0]["setting"], runs_a[0]["task"]
            facts = {
                "task": task,
                "a": a,
                "b": b,
                "setting_a": setting_a,
                "setting_b": runs_b[0]["setting"],
                "differs": names[setting_a],
            }
            tests = _tests(runs_a, runs_b, splits_of(finished.filter(task=task)))
            rows += [facts | test for test in tests]
    if not rows:
        raise UsageError(_nothing_shared(a, b, sides))
    return pl.DataFrame(rows, SCHEMA).sort("task", "differs", "setting_a", maintain_order=True)


def seed_by_seed(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    """The paired statistics of two samples of equal size: see ``paired`` for the names."""
    n = len(a)
    both = list(zip(a, b, strict=True))
    sides = ({"": dict(enumerate(side))} for side in (a, b))
    return {
        "n": n,
        "difference": median(x - y for x, y in both) if n else None,
        "lower_a": sum(x < y for x, y in both),
        "lower_b": sum(x > y for x, y in both),
        "p": sign_test(*sides) if n > 1 else None,
        "p_least": 2 / 2**n if n > 1 else None,
    }


Runs = dict[str, dict[int, dict[str, Any]]]
"""setting -> seed -> run."""


def _side(finished: pl.DataFrame, pe: str) -> dict[tuple[Any, ...], Runs]:
    """What both sides must share -> the settings of an encoding with it."""
    if not len(finished):
        return {}
    keys = [key for key in compared_keys(finished) if not key.startswith("pe.")]
    sides: dict[tuple[Any, ...], Runs] = {}
    for run in without_idle(finished).filter(pe=pe).iter_rows(named=True):
        protocol = {key: run[key] for key in keys}
        if same(protocol["train.lr"], defaults_of(run)["train.lr"]):
            protocol["train.lr"] = "preset"
        shared = (("task", run["task"]), *protocol.items())
        sides.setdefault(shared, {}).setdefault(run["setting"], {})[run["seed"]] = run
    return sides


def _only(pe: str, settings: Runs) -> dict[int, dict[str, Any]]:
    if len(settings) == 1:
        return next(iter(settings.values()))
    firsts = [next(iter(runs.values())) for runs in settings.values()]
    keys = [k for k in firsts[0] if k.startswith("pe.") and len({text(f[k]) for f in firsts}) > 1]
    choice = f"pe!={pe} or {keys[0]}={text(firsts[0][keys[0]])}" if keys else f"pe!={pe} or .."
    raise UsageError(
        f"pe={pe} has {len(settings)} settings here that differ in {', '.join(keys)}: choose one, "
        f"where='{choice}'"
    )


def _tests(
    of_a: list[dict[str, Any]], of_b: list[dict[str, Any]], splits: list[str]
) -> list[dict[str, Any]]:
    """A row for each split, of two lists of runs with the same seeds."""
    rows: list[dict[str, Any]] = []
    for split in splits:
        name = metric_name(split, "error")
        both = [
            (x["seed"], x[name], y[name])
            for x, y in zip(of_a, of_b, strict=True)
            if x[name] is not None and y[name] is not None
        ]
        seeds, *errors = map(list, zip(*both, strict=True)) if both else ([], [], [])
        limit = threshold(of_a[0]["task"], split)
        row: dict[str, Any] = {"split": split, "seeds": seeds, "threshold": limit}
        for side, values in zip("ab", errors, strict=True):
            row |= {
                f"errors_{side}": values,
                f"k_{side}": sum(e <= limit for e in values) if values else None,
                f"median_{side}": median(values) if values else None,
                f"clusters_{side}": two_clusters(values, limit) if values else None,
            }
        rows.append({**row, **seed_by_seed(*errors)})
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    return rows


def _nothing_shared(a: str, b: str, sides: dict[str, dict[tuple[Any, ...], Runs]]) -> str:
    """The message with the nearest pair of settings and their differences."""
    pairs = [
        ([(key, x, y) for (key, x), (_, y) in zip(one, two, strict=True) if x != y], one, two)
        for one in sides[a]
        for two in sides[b]
    ]
    differs, one, two = min(pairs, key=lambda pair: len(pair[0]))
    if differs:
        keys = ", ".join(f"{key} ({text(x)}; {text(y)})" for key, x, y in differs)
        return f"a={a} b={b} have no equal settings to pair: the nearest differ in {keys}"
    seeds = [
        ",".join(str(seed) for runs in sides[pe][shared].values() for seed in sorted(runs))
        for pe, shared in ((a, one), (b, two))
    ]
    return f"a={a} b={b} share no seed in equal settings: {a} has {seeds[0]}, {b} has {seeds[1]}"
