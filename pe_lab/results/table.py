"""All runs of a folder as one polars table, for commands and notebooks.

>>> from pe_lab.results.table import by_split, read_runs
>>> runs = read_runs("runs", where="task=flipflop and train.steps>=1000", pe="cope,rope")
>>> by_split(runs).group_by("pe", "split").agg(pl.mean("error"), pl.std("error").alias("sd"))
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from pe_lab.core.errors import PeLabError, UsageError, reason
from pe_lab.core.files import read_yaml, write_output
from pe_lab.core.metrics import (
    CHARTED,
    IN_DOMAIN,
    NOT_FINITE,
    OOD,
    SHARES,
    TABLED,
    metric_name,
    metric_prefix,
    suite_files,
)
from pe_lab.core.options import Line
from pe_lab.results.query import filter_key, filter_where
from pe_lab.store.run_folder import RunFolder, find_edited, run_folders
from pe_lab.store.run_id import add_new_keys, drop_seed, identity, is_excluded

logger = logging.getLogger("pe_lab")
Kind = pl.DataType | type[pl.DataType]

TUNING_OF = "tuning_of"
# Columns of every run; null where unknown.
FACTS: dict[str, Kind] = {
    **dict.fromkeys(("path", "state", "message"), pl.String),
    **dict.fromkeys(("step", "steps"), pl.Int64),
    **dict.fromkeys(("task", "pe"), pl.String),
    "seed": pl.Int64,
    **dict.fromkeys(("run_id", "setting"), pl.String),
    **dict.fromkeys(("splits", "null_keys"), pl.List(pl.String)),
    TUNING_OF: pl.String,
}
RUN = ("path", "task", "pe", "seed", "setting")
GROUPS = ("positions", "model", "train", "tracker", "preset", "experiment")
# The name of the runs of docs/findings.md, a file that ships with the package.
FINDINGS = "findings"
SHIPPED_FINDINGS = Path(str(files("pe_lab.results"))) / f"{FINDINGS}.parquet"


def read_runs(
    runs_dir: str | Path = "runs", where: str | None = None, **equal: Any
) -> pl.DataFrame:
    """Return one row per run, finished or not, without those that ``force`` replaced.

    Columns: ``path``, ``state`` (finished, running, interrupted, failed, killed, not begun or
    broken), ``message`` (why it failed or is broken), ``step`` of ``steps``, ``task``, ``pe``,
    ``seed``, ``run_id``, ``setting`` (eight hex digits of the configuration less the seed),
    ``splits``, ``null_keys`` (null before the configuration was resolved), ``tuning_of`` (the suite
    that chose a learning rate on this run), ``task_digest``; the chosen file of each other
    group (``positions``, ``model``, ..); ``pe.edited`` (true where your class was edited after the
    run; also task, model, positions); every resolved key (``train.steps``,
    ``pe.npos``); every metric (``in_domain/error``, ``ood/sparse/error``, ``params/total``), and
    ``ood/error``, ``ood/error_seq``, ``ood/loss`` and ``ood/guess``, the means over all splits out
    of domain (null where the encoding could not measure one of them); ``not_finite``. A key that a
    run lacks is null. Keys whose values are of several kinds, and lists, are text.

    Args:
        where: a condition as in ``pe-lab results where=..`` (see query.py).
        equal: keys with the value that they must have, or several in a list or joined by commas:
            ``pe="cope,rope"``, ``seed=[0, 1]``, ``**{"train.steps": 400}``. A value that is a list
            is given as text: ``**{"model.pattern": "[kda, attention]"}``.

    Raises:
        UsageError: ``runs_dir`` is not a folder, a key is unknown, or a condition is not
            understood.
    """
    folder = Path(runs_dir)
    if not folder.is_dir():
        raise UsageError(
            f"runs_dir={runs_dir} is not a folder: give the one your runs are in, or "
            "make one with pe-lab task=flipflop pe=cope"
        )
    return filtered(runs_of(folder.path for folder in run_folders(folder)), where, equal)


def write_parquet(rows: pl.DataFrame, path: Path) -> None:
    """Write rows as parquet, the same rows always as the same bytes.

    Raises:
        MachineError: the file cannot be written.
    """
    content = BytesIO()
    rows.write_parquet(content, compression="zstd", statistics=False)
    write_output(path, content.getvalue())


def runs_of(paths: Iterable[str | Path]) -> pl.DataFrame:
    """Return the rows that ``read_runs`` has for the runs in these folders."""
    settings: dict[bytes, dict[str, Any]] = {}
    runs = [_row(RunFolder(Path(path)), settings) for path in paths]
    table = _frame(runs, {"_row": pl.Int64, **FACTS}).drop("setting", "null_keys")
    kinds = {
        "_row": pl.Int64,
        **dict.fromkeys(("setting", "task_digest"), pl.String),
        "null_keys": FACTS["null_keys"],
    }
    table = table.join(_frame([*settings.values()], kinds), on="_row", how="left")
    table = table.drop("_row").with_columns(tuning_of(pl.col("task_digest"), pl.col("seed")))
    others = [name for name in table.columns if name not in FACTS]
    table = table.select(*FACTS, *sorted(others, key=lambda name: "/" in name))
    return _with_ood_means(_without_copies(table))


def filtered(
    frame: pl.DataFrame, where: str | None, equal: Mapping[str, Any], also: Sequence[str] = ()
) -> pl.DataFrame:
    """Return the rows that ``read_runs`` with these conditions has.

    Args:
        also: keys of another kind, which an unknown one may be meant for.

    Raises:
        UsageError: a key is unknown, or a condition is not understood.
    """
    if frame.is_empty():
        return frame
    for key, values in equal.items():
        several = values if isinstance(values, list | tuple | range) else [values]
        frame = filter_key(frame, key, ",".join(map(text, several)), also)
    return frame if where is None else filter_where(frame, where)


def _row(folder: RunFolder, settings: dict[bytes, dict[str, Any]]) -> dict[str, Any]:
    """Return what is known of a run.

    Args:
        settings: configuration without the seed -> its row in the table of settings.
    """
    *_, task, pe, name = "", "", *folder.path.parts
    facts: dict[str, Any] = {"path": str(folder.path), "task": task, "pe": pe}
    try:
        facts["seed"] = int(name.removeprefix("seed").partition("-")[0])
        summary = folder.summary()
        known, recorded = _unfinished(folder) if summary is None else _finished(summary)
        if "config" in recorded:
            _check_numbers(recorded["config"], recorded.get("metrics", {}))
            config = drop_seed(recorded["config"])
            for group in find_edited(recorded.get("sources") or {}):
                config[group] = {**config[group], "edited": True}
            parts = config, recorded.get("contents") or {}
            content = orjson.dumps([*parts, recorded.get("null_keys") or []])
            if content not in settings:
                settings[content] = {"_row": len(settings), **_setting(orjson.loads(content))}
            known["_row"] = settings[content]["_row"]
        return facts | known
    except PeLabError as error:
        message = str(error)
    except Exception as error:
        # No run, whatever is in it, may hide the others.
        message = f"{folder.path} cannot be read ({reason(error)}): make it again with force=true"
    return {**facts, "state": "broken", "message": message}


def _check_numbers(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """ValueError where a record has no number, or no share, where tables compute with one."""
    for key in ("lr", "steps"):
        if not isinstance(value := config["train"][key], (int, float)):
            raise ValueError(f"train.{key} is {value!r}, not a number")
    for name, value in metrics.items():
        if value is not None and name.rpartition("/")[2] in SHARES and not 0 <= value <= 1:
            raise ValueError(f"{name} is {value!r}, not a share")


def _finished(summary: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    metrics = summary["metrics"]
    facts = {
        "state": "finished",
        "step": summary["steps"],
        "steps": summary["config"]["train"]["steps"],
        "splits": list(summary["splits"]),
        NOT_FINITE: " ".join(name for name, value in metrics.items() if value is None),
        **summary["names"],
        **{key: summary[key] for key in ("task", "pe", "seed", "run_id")},
    }
    return facts | metrics, summary


def _unfinished(folder: RunFolder) -> tuple[dict[str, Any], Mapping[str, Any]]:
    status = folder.status()
    facts = {
        "state": folder.state("not begun"),
        **{k: status[k] for k in ("step", "steps") if status},
    }
    facts |= {"message": status.get("error"), "by_machine": status.get("by_machine")}
    file = folder.path / "config.yaml"
    if not file.exists():
        return facts, {}
    config = read_yaml(file)
    starts = [start for start in folder.starts() if "contents" in start or "null_keys" in start]
    return config.pop("names", {}) | facts, {**(starts[0] if starts else {}), "config": config}


def _setting(recorded: tuple[dict[str, Any], dict[str, str], list[str]]) -> dict[str, Any]:
    """Return the keys that all seeds of a setting share."""
    config, contents, null_keys = recorded
    keys = flat({**add_new_keys(config), "contents": contents})
    keys = {key: value for key, value in keys.items() if key not in ("seed", "seed.data")}
    null_keys = [*null_keys, *(key for key, value in keys.items() if value is None)]
    task = {key: value for key, value in config["task"].items() if key != "edited"}
    digest = task_digest({**config, "task": task}, contents)
    facts = {"setting": identity(config, contents), "task_digest": digest}
    return {**facts, "null_keys": null_keys, **keys}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by dotted key. A list of parts becomes the list of their names, and the keys of
    each part follow under its index: pe.parts, pe.parts.0.base."""
    keys: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            keys |= flat(value, f"{prefix}{key}.")
        elif value and isinstance(value, list) and isinstance(value[0], dict):
            keys[prefix + key] = f"[{','.join(part.get('pe', part['_target_']) for part in value)}]"
            for number, part in enumerate(value):
                values = {k: v for k, v in part.items() if k not in ("pe", "_target_")}
                keys |= flat(values, f"{prefix}{key}.{number}.")
        else:
            keys[prefix + key] = text(value) if isinstance(value, list) else value
    return keys


def text(value: Any) -> str:
    """Return a value of a configuration as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _frame(rows: list[dict[str, Any]], kinds: Mapping[str, Kind]) -> pl.DataFrame:
    """Return rows with different keys as one table."""
    table = pl.from_dicts(
        [dict.fromkeys(kinds), *rows],
        schema_overrides=kinds, infer_schema_length=None, strict=False,
    ).tail(-1)  # fmt: skip
    empty = {name: pl.Float64 if "/" in name else pl.String for name in table.columns}
    return table.cast({name: empty[name] for name, kind in table.schema.items() if kind == pl.Null})


def _without_copies(table: pl.DataFrame) -> pl.DataFrame:
    """Call a run broken that is in two folders, but for the first."""
    run = pl.struct("task", "pe", "seed", "setting", "state")
    copied = (pl.col("state") == "finished") & ~run.is_first_distinct()
    first = pl.col("path").first().over("task", "pe", "seed", "setting", "state")
    message = pl.format("{} is {} again, counted once: remove one of them", "path", first)
    return table.with_columns(
        state=pl.when(copied).then(pl.lit("broken")).otherwise("state"),
        message=pl.when(copied).then(message).otherwise("message"),
    )


def _with_ood_means(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the mean of each metric over the splits out of domain."""
    ood = [split for split in splits_of(frame) if split != IN_DOMAIN]
    n = pl.col("splits").list.len() - pl.col("splits").list.contains(IN_DOMAIN).cast(pl.UInt32)
    means = {}
    for metric in (*(m.name for m in CHARTED), "guess"):
        columns = [c for split in ood if (c := metric_name(split, metric)) in frame.columns]
        if columns:
            measured = pl.sum_horizontal(pl.col(columns).is_not_null())
            mean = pl.mean_horizontal(pl.col(columns).cast(pl.Float64))
            means[f"{OOD}/{metric}"] = pl.when(measured == n).then(mean)
    return frame.with_columns(**means)


def compared_keys(frame: pl.DataFrame) -> list[str]:
    """Return the columns that are keys of the configuration and can change a run's numbers."""
    return [
        name for name in frame.columns if "." in name.partition("/")[0] and not is_excluded(name)
    ]


def splits_of(frame: pl.DataFrame) -> list[str]:
    """Return the splits of these runs: in_domain, sparse, .., in the order measured."""
    return list(
        dict.fromkeys(split for splits in frame["splits"].to_list() for split in splits or ())
    )


def measured(frame: pl.DataFrame, split: str, metric: str) -> pl.Expr:
    """Return a metric of a split under the metric's name; null where no run has it."""
    name = metric_name(split, metric)
    column = pl.col(name) if name in frame.columns else pl.lit(None)
    return column.cast(pl.Float64).alias(metric)


def by_split(frame: pl.DataFrame, metrics: Sequence[str] = TABLED) -> pl.DataFrame:
    """Return the finished runs, one row per run and split: ``path``, ``task``, ``pe``, ``seed``,
    ``setting``, ``split``, ``place`` (the prefix of its metrics) and the metrics: ``error``,
    ``error_low``, ``error_high`` (95 % Wilson), ``error_seq``, ``loss``, ``n``, ``guess``; null
    where the split was too long for the encoding."""
    finished = frame.filter(pl.col("state") == "finished")
    kinds = {name: FACTS.get(name, pl.String) for name in (*RUN, "split", "place")}
    parts = [pl.DataFrame(schema=kinds | dict.fromkeys(metrics, pl.Float64))]
    for split in splits_of(frame):
        names = {"split": pl.lit(split), "place": pl.lit(metric_prefix(split))}
        numbers = {metric: measured(frame, split, metric) for metric in metrics}
        of_split = finished.filter(pl.col("splits").list.contains(split))
        parts.append(of_split.select(*RUN, **names, **numbers))
    return pl.concat(parts)


def curves(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the runs' metrics.jsonl: ``path``, ``task``, ``pe``, ``seed``,
    ``setting``, ``step`` and the metrics."""
    kinds = {name: FACTS[name] for name in (*RUN, "step")}
    return _frame(_rows_of(frame, RunFolder.rows), kinds)


def breakdowns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the errors of the finished runs by property of the answer: ``path``, ``task``, ``pe``,
    ``seed``, ``setting``, ``split``, ``kind`` (length, distance, depth, ..), ``bucket`` (3-4),
    ``error``, ``loss`` (null where it is not finite), ``n``."""

    def cells(folder: RunFolder) -> list[dict[str, Any]]:
        return [
            {"split": split, "kind": kind, "bucket": bucket, "loss": None, **cell}
            for split, kinds in (folder.summary() or {}).get("by", {}).items()
            for kind, buckets in kinds.items()
            for bucket, cell in buckets.items()
        ]

    kinds = {name: FACTS[name] for name in RUN}
    kinds |= dict.fromkeys(("split", "kind", "bucket"), pl.String)
    kinds |= {"error": pl.Float64, "loss": pl.Float64, "n": pl.Int64}
    return _frame(_rows_of(frame.filter(pl.col("state") == "finished"), cells), kinds)


def _rows_of(
    frame: pl.DataFrame, read: Callable[[RunFolder], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the rows that ``read`` gives of each run. A run whose files cannot be read is left
    out, with a warning."""
    rows = []
    for run in frame.select(RUN).iter_rows(named=True):
        with damage_named("it is left out"):
            rows += [{**run, **row} for row in read(RunFolder(Path(run["path"])))]
    return rows


@contextmanager
def damage_named(until_then: str) -> Iterator[None]:
    """Name a file that cannot be read, and what that means for its run; the others go on."""
    try:
        yield
    except PeLabError as error:
        logger.warning("%s; until then %s", error, until_then)


def read_file_of_runs(file: str | Path) -> pl.DataFrame:
    """Return the runs of a parquet file, as ``pe-lab results to=FILE.parquet`` writes it; their
    folders need not exist any more. The name ``findings`` is the file that ships with the package.

    Raises:
        UsageError: there is no such file, or it is of something else.
    """
    path = SHIPPED_FINDINGS if str(file) == FINDINGS else Path(file)
    try:
        frame = pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            f"file={file} cannot be read ({reason(error)}): give one that pe-lab results "
            f"to=FILE.parquet has written, or {FINDINGS} for the runs that ship with pe-lab"
        ) from None
    if missing := [name for name in FACTS if name not in (*frame.columns, TUNING_OF)]:
        raise UsageError(
            f"file={file} is no table of runs, it lacks {', '.join(missing)}: "
            "pe-lab results to=FILE.parquet writes one"
        )
    later = pl.DataFrame(schema={TUNING_OF: pl.String, NOT_FINITE: pl.String})
    frame = pl.concat([frame, later], how="diagonal_relaxed")
    return frame.with_columns(pl.col(NOT_FINITE).fill_null(""))


def task_digest(config: Mapping[str, Any], contents: Mapping[str, str] | None = None) -> str:
    """Return eight hex digits that identify what a recorded run was trained and measured on.

    The entry (``pe``, ``model`` and ``positions``), the seed, the rate and the number of steps are
    not part of it.
    """
    entry: dict[str, Any] = {key: {} for key in ("pe", "model", "positions")}
    train = {**config["train"], "lr": 0, "steps": 0}
    return identity({**config, **entry, "seed": 0, "train": train}, dict(contents or {}))


def tuning_of(digest: pl.Expr, seed: pl.Expr) -> pl.Expr:
    """Return the suite whose learning rates were chosen by the errors of a run; null: none.

    Args:
        digest: the ``task_digest`` of the run.
        seed: its seed, one of a suite's tuning seeds where a rate was chosen by it.
    """
    name = pl.lit(None, pl.String)
    # The last condition is the first that is tried.
    for suite, content in sorted(suite_files().items(), reverse=True):
        digests = [str(task["digest"]) for task in content["tasks"].values()]
        seeds = content["protocol"]["tuning_seeds"]
        name = (
            pl.when(digest.is_in(digests) & seed.is_in(seeds)).then(pl.lit(suite)).otherwise(name)
        )
    return name.alias(TUNING_OF)


def tuning(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the finished runs on which a suite chose a learning rate."""
    return runs.filter(pl.col("state") == "finished", pl.col(TUNING_OF).is_not_null())


def without_tuning(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the other runs, those that are not finished included."""
    return runs.filter(pl.col(TUNING_OF).is_null())


def selected(
    line: Line,
    runs_dir: str | Path,
    where: str | None,
    filters: Mapping[str, str],
    file: Path | None = None,
) -> pl.DataFrame:
    """Return the runs that a command's line selects (see ``read_runs``), of a folder or a file.

    Raises:
        UsageError: a filter that no run can have, or that cannot be read.
    """
    runs = read_runs(runs_dir) if file is None else read_file_of_runs(file)
    return filtered(runs, where, filters, line.keys)


def unfinished_notes(runs: pl.DataFrame) -> list[str]:
    """Return a line for each run that is not finished: tables never drop one silently."""
    notes = []
    for run in runs.filter(pl.col("state") != "finished").iter_rows(named=True):
        at = "" if run["step"] is None else f" at step {run['step']} of {run['steps']}"
        message = f": {run['message']}" if run["message"] else ""
        line = f"{run['path']}  {run['state']}{at}{message}"
        notes.append(run["message"] if run["state"] == "broken" else line)
    return notes
