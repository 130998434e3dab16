"""Paired comparison of two encodings over seeds. Runs of one seed share their batches and all
weights outside of the encoding, so that paired differences vary less than the errors do."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import polars as pl

from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import metric_name
from pe_lab.results.groups import defaults_of, named, same, without_idle
from pe_lab.results.statistics import holm, sign_test, two_clusters
from pe_lab.results.table import Kind, compared_keys, splits_of, text, threshold, without_tuning

SCHEMA: dict[str, Kind] = {
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
Run = Mapping[str, Any]
# setting -> seed -> run.
Settings = dict[str, dict[int, Run]]


def paired(runs: pl.DataFrame, a: str, b: str) -> pl.DataFrame:
    """Return, for each split, which of two encodings errs less over the seeds that both have.

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
    sides = {pe: _by_protocol(finished, pe) for pe in (a, b)}
    for pe, protocols in sides.items():
        if not protocols:
            raise UsageError(f"no finished run of pe={pe} among these: nothing to pair")
    names = named(finished).labels
    rows: list[dict[str, Any]] = []
    for protocol in sides[a].keys() & sides[b].keys():
        runs_a, runs_b = _only(a, sides[a][protocol]), _only(b, sides[b][protocol])
        if seeds := sorted(runs_a.keys() & runs_b.keys()):
            first, other = runs_a[seeds[0]], runs_b[seeds[0]]
            facts = {"task": first["task"], "a": a, "b": b, "differs": names[first["setting"]]}
            facts |= {"setting_a": first["setting"], "setting_b": other["setting"]}
            splits = splits_of(finished.filter(task=first["task"]))
            pairs = [(runs_a[seed], runs_b[seed]) for seed in seeds]
            tests = [_test(pairs, split) for split in splits]
            ps = holm([test["p"] for test in tests])
            rows += [facts | test | {"p_holm": p} for test, p in zip(tests, ps, strict=True)]
    if not rows:
        raise UsageError(f"a={a} b={b} share no seed in settings that are otherwise equal")
    return pl.DataFrame(rows, SCHEMA).sort("task", "differs", "setting_a", maintain_order=True)


def _by_protocol(finished: pl.DataFrame, pe: str) -> dict[tuple[Any, ...], Settings]:
    """Return what both sides must share -> the settings of an encoding with it."""
    if not len(finished):
        return {}
    keys = [key for key in compared_keys(finished) if not key.startswith("pe.")]
    protocols: dict[tuple[Any, ...], Settings] = {}
    for run in without_idle(finished).filter(pe=pe).iter_rows(named=True):
        protocol = {"task": run["task"], **{key: run[key] for key in keys}}
        if same(protocol["train.lr"], defaults_of(run)["train.lr"]):
            protocol["train.lr"] = "preset"
        settings = protocols.setdefault(tuple(protocol.items()), {})
        settings.setdefault(run["setting"], {})[run["seed"]] = run
    return protocols


def _only(pe: str, settings: Settings) -> dict[int, Run]:
    """Return the runs of the only setting."""
    if len(settings) == 1:
        return next(iter(settings.values()))
    firsts = [next(iter(runs.values())) for runs in settings.values()]
    keys = [k for k in firsts[0] if k.startswith("pe.") and len({text(f[k]) for f in firsts}) > 1]
    raise UsageError(
        f"pe={pe} has {len(settings)} settings here that differ in {', '.join(keys)}: choose one, "
        f"where='pe!={pe} or {keys[0]}={text(firsts[0][keys[0]])}'"
    )


def _test(pairs: Sequence[tuple[Run, Run]], split: str) -> dict[str, Any]:
    """Return the row of a split, of the runs of both sides with the same seeds."""
    name = metric_name(split, "error")
    both = [
        (one["seed"], one[name], other[name])
        for one, other in pairs
        if one[name] is not None and other[name] is not None
    ]
    seeds, *errors = map(list, zip(*both, strict=True)) if both else ([], [], [])
    limit = threshold(pairs[0][0]["task"], split)
    row: dict[str, Any] = {"split": split, "seeds": seeds, "threshold": limit}
    for side, values in zip("ab", errors, strict=True):
        row |= {
            f"errors_{side}": values,
            f"k_{side}": sum(error <= limit for error in values) if values else None,
            f"median_{side}": median(values) if values else None,
            f"clusters_{side}": two_clusters(values, limit) if values else None,
        }
    return {**row, **seed_by_seed(*errors)}


def seed_by_seed(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    """Return the paired statistics of two samples of equal size: see ``paired`` for the names."""
    n, differences = len(a), [x - y for x, y in zip(a, b, strict=True)]
    lower_a, lower_b = sum(d < 0 for d in differences), sum(d > 0 for d in differences)
    return {
        "n": n,
        "difference": median(differences) if n else None,
        "lower_a": lower_a,
        "lower_b": lower_b,
        "p": sign_test(lower_a, lower_b) if n > 1 else None,
        "p_least": 2 / 2**n if n > 1 else None,
    }
