"""All runs of a folder as one polars table: what every command and notebook counts from.

>>> from pe_lab.results.frame import by_split, read_runs
>>> runs = read_runs("runs", where="task=flipflop and train.steps>=1000", pe="cope,rope")
>>> by_split(runs).group_by("pe", "split").agg(pl.mean("error"), pl.std("error").alias("sd"))
"""

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import TABLED, metric_prefix
from pe_lab.results.columns import Kind, frame_of
from pe_lab.results.query import condition, one_of
from pe_lab.results.reader import read_records, text, without_collection
from pe_lab.store.metrics_log import read_metrics
from pe_lab.store.run_id import ONLY_EARLY_STOPPING, excluded

FACTS: dict[str, Kind] = {
    "path": pl.String,
    "state": pl.String,
    "told": pl.String,
    "step": pl.Int64,
    "steps": pl.Int64,
    "task": pl.String,
    "pe": pl.String,
    "seed": pl.Int64,
    "run_id": pl.String,
    "setting": pl.String,
    "splits": pl.List(pl.String),
}
"""The columns that every run has, where they are known."""

GROUPS = ("positions", "model", "train", "tracker", "preset", "experiment")


def read_runs(
    runs_dir: str | Path = "runs", where: str | None = None, **equal: Any
) -> pl.DataFrame:
    """One row a run, finished or not, without those that ``force`` set aside.

    Columns: ``path``, ``state`` (finished, running, interrupted, failed, killed, not begun or
    broken), ``told`` (why it failed or is broken), ``step`` of ``steps``, ``task``, ``pe``,
    ``seed``, ``run_id``, ``setting`` (eight hex digits of the configuration less the seed),
    ``splits``; the chosen file of each other group (``positions``, ``model``, ..); every resolved
    key (``train.steps``, ``pe.npos``); every metric (``in_domain/error``, ``ood/sparse/error``,
    ``params/total``). A key that a run lacks is null. Keys whose values are of several kinds, and
    lists, are text as on the command line.

    Args:
        where: a condition as in ``pe-lab results where=..`` (see where.py).
        equal: keys with the value, or the values joined by commas, that they must have:
            ``pe="cope,rope"``, ``**{"train.steps": 400}``.

    Raises:
        UsageError: ``runs_dir`` is no folder, a key is unknown, or a condition is not understood.

    >>> runs = read_runs("runs", task="flipflop", **{"model.d_model": 64})
    >>> runs.filter(pl.col("state") == "finished").group_by("pe").agg(pl.mean("ood/sparse/error"))
    """
    folder = Path(runs_dir)
    if not folder.is_dir():
        raise UsageError(
            f"runs_dir={runs_dir} is no folder: give the one your runs are in, or "
            "make one with pe-lab task=flipflop pe=cope"
        )
    with without_collection():
        frame = frame_of(read_records(folder), FACTS)
    if frame.is_empty():
        return frame
    for key, values in equal.items():
        frame = frame.filter(one_of(frame, key, text(values)))
    return frame if where is None else frame.filter(condition(frame, where))


def config_keys(frame: pl.DataFrame) -> list[str]:
    """The columns that are resolved keys with a dot: ``train.steps``, ``pe.npos``, .."""
    return [name for name in frame.columns if "." in name.partition("/")[0]]


def compared_keys(frame: pl.DataFrame) -> list[str]:
    """Those of the ``config_keys`` that can change a run's numbers."""
    return [key for key in config_keys(frame) if not excluded(key)]


def by_split(frame: pl.DataFrame) -> pl.DataFrame:
    """The finished runs, a row for each run and split: ``path``, ``task``, ``pe``, ``seed``,
    ``setting``, ``split``, ``place`` (its metrics' prefix), ``error``, ``error_low``,
    ``error_high`` (95 % Wilson), ``error_seq``, ``loss``, ``n``, ``guess``; null where the split
    was too long for the encoding."""
    finished = frame.filter(pl.col("state") == "finished")
    parts = []
    for place in places(frame):
        split = place.removeprefix("ood/")
        numbers = [
            pl.col(name).cast(pl.Float64).alias(kind)
            if (name := f"{place}/{kind}") in frame.columns
            else pl.lit(None, pl.Float64).alias(kind)
            for kind in TABLED
        ]
        parts.append(
            finished.filter(pl.col("splits").list.contains(split)).select(
                "path", "task", "pe", "seed", "setting",
                pl.lit(split).alias("split"), pl.lit(place).alias("place"), *numbers,
            )
        )  # fmt: skip
    return pl.concat(parts) if parts else pl.DataFrame()


def places(frame: pl.DataFrame) -> list[str]:
    """The prefixes of the splits' metrics: in_domain, ood/sparse, .., in the order measured."""
    splits = dict.fromkeys(split for splits in frame["splits"].to_list() for split in splits or ())
    return list(map(metric_prefix, splits))


def curves(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of the runs' metrics.jsonl: ``path``, ``pe``, ``seed``, ``setting``, ``step`` and
    the metrics; a last line that was cut off, and a run without rows, are left out."""
    rows: list[dict[str, Any]] = []
    for run in frame.select("path", "pe", "seed", "setting").iter_rows(named=True):
        path = Path(run["path"]) / "metrics.jsonl"
        if path.is_file():
            rows += [{**run, **row} for row in read_metrics(path)]
    facts = {name: FACTS[name] for name in ("path", "pe", "seed", "setting", "step")}
    names = [name for name in dict.fromkeys(k for row in rows for k in row) if name not in facts]
    columns = {name: pl.Series(name, [r.get(name) for r in rows], facts[name]) for name in facts}
    metrics = [pl.Series(name, [r.get(name) for r in rows], pl.Float64) for name in names]
    return pl.DataFrame([*columns.values(), *metrics])


def breakdowns(frame: pl.DataFrame) -> pl.DataFrame:
    """Where the errors of the finished runs are: ``path``, ``task``, ``pe``, ``seed``,
    ``setting``, ``split``, ``kind`` (length, distance, depth, ..), ``bucket`` (3-4), ``error``,
    ``loss`` (null in runs made before it was kept), ``n``."""
    facts = ("path", "task", "pe", "seed", "setting")
    finished = frame.filter(pl.col("state") == "finished").select(facts)
    rows = [
        (*run, split, kind, bucket, cell["error"], cell.get("loss"), cell["n"])
        for run in finished.iter_rows()
        for split, kinds in _breakdown(run[0]).items()
        for kind, buckets in kinds.items()
        for bucket, cell in buckets.items()
    ]
    schema = {name: FACTS[name] for name in facts}
    schema |= dict.fromkeys(("split", "kind", "bucket"), pl.String)
    schema |= dict.fromkeys(("error", "loss"), pl.Float64) | {"n": pl.Int64}
    return pl.DataFrame(rows, schema, orient="row")


def _breakdown(path: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((Path(path) / "summary.json").read_bytes()).get("by", {})
    return found


def labels(frame: pl.DataFrame) -> dict[str, str]:
    """setting -> the keys, with values, in which the settings of a task differ; those of an
    encoding or a model are compared among its own runs, those of a part among equal combinations.

    Most splits follow from the task's own keys: they are told where those are not enough.
    """
    rows = frame.filter(pl.col("setting").is_not_null()).unique("setting", maintain_order=True)
    keys = [k for k in ("positions", "model", *compared_keys(rows)) if k in rows.columns]
    keys = [key for key in keys if key not in ("pe._target_", "model._target_")]
    rows = without_idle(rows)
    words: dict[str, dict[str, str]] = {setting: {} for setting in rows["setting"]}
    for among, prefix in _AMONG.items():
        alike = [key for key in among.split() if key in rows.columns]
        own = [key for key in keys if _prefix(key) == prefix and rows[key].n_unique() > 1]
        if not own:
            continue
        differs = rows.select(pl.col(own).n_unique().over(alike) > 1)
        for setting, values, told in zip(
            rows["setting"], rows.select(own).iter_rows(), differs.iter_rows(), strict=True
        ):
            words[setting] |= {
                key: text(value)
                for key, value, tell in zip(own, values, told, strict=True)
                if tell and (value is not None or not key.startswith((*_OPEN, *IDLE)))
            }
    groups = dict.fromkeys(key.partition(".")[0] for key in config_keys(rows))
    roots = {group: rank for rank, group in enumerate(groups)}
    ranks = {key: (roots[key.split(".")[0]], rank) for rank, key in enumerate(keys)}
    owners = {row[0]: row[1:] for row in rows.select("setting", "task", "pe").iter_rows()}
    return _distinct(
        {s: dict(sorted(own.items(), key=lambda word: ranks[word[0]])) for s, own in words.items()},
        owners,
    )


_AMONG = {
    "task pe pe.parts": "pe.parts.",
    "task pe": "pe.",
    "task positions": "positions.",
    "task model": "model.",
    "task": "",
}
"""What a key with this prefix is compared among."""
_OPEN = ("contents.", "task.files.", "task.splits.")
"""Mappings with keys of the user's own: one that a run lacks is no null."""


IDLE = tuple(sorted(ONLY_EARLY_STOPPING))
"""Without effect while nothing stops a run early: null, and not told."""


def _prefix(key: str) -> str:
    return next(prefix for prefix in _AMONG.values() if key.startswith(prefix))


def without_idle(rows: pl.DataFrame) -> pl.DataFrame:
    """What is without effect while nothing stops a run early, as null."""
    stops = pl.col("train.stop_below").is_not_null()
    return rows.with_columns(pl.when(stops).then(pl.col(k)) for k in IDLE if k in rows.columns)


def _distinct(
    words: dict[str, dict[str, str]], owners: dict[str, tuple[str, str]]
) -> dict[str, str]:
    """One line a setting, as short as tells it from the others of its task and encoding."""
    told: dict[str, str] = {}
    for hidden, last in (("task.splits.", ""), ("\0", ""), ("\0", "setting={}")):
        lines = {
            setting: " ".join(f"{k}={v}" for k, v in own.items() if not k.startswith(hidden))
            for setting, own in words.items()
            if setting not in told
        }
        lines = {s: f"{line} {last.format(s)}".strip() for s, line in lines.items()}
        rows = Counter((owners[setting], line) for setting, line in lines.items())
        told |= {s: line for s, line in lines.items() if rows[owners[s], line] == 1}
    return told
