"""The runs of a suite as rows, one for each run and split: of the files that ship, and of folders.

A run belongs to a suite if its ``task_digest`` is that of one of the suite's tasks. Its entry is
named after the encoding or control and its column, with the keys in which it departs from the
suite's words: ``cope``, ``cope+conv``, ``lstm``, ``cope npos=8``.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from pe_lab.core.config_dir import choices
from pe_lab.core.files import read_yaml
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.results.groups import same
from pe_lab.results.table import damage_named, flat, read_runs, text
from pe_lab.store.run_folder import RunFolder
from pe_lab.suite.suite import SCORE, TUNING, Suite, load_suite

# What a run was made with.
ORIGIN = ("revision", "torch", "machine", "processor", "python")
# ``suite`` name and digest; ``phase`` what the run is for (``phase_of``); ``seed`` of the data,
# ``seed_init`` of the weights; ``error`` the share of wrong answers among ``n`` in ``n_seq``
# sequences, null where the run failed or the encoding does not reach the length; ``guess`` that of
# guessing; ``train_s`` and ``measure_s`` seconds; ``state`` finished or failed; ``started`` in
# seconds since 1970.
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("suite", "task", "entry", "pe", "model", "phase"), pl.String),
    "lr": pl.Float64,
    **dict.fromkeys(("seed", "seed_init", "steps"), pl.Int64),
    "split": pl.String,
    **dict.fromkeys(("error", "loss"), pl.Float64),
    **dict.fromkeys(("n", "n_seq"), pl.Int64),
    "guess": pl.Float64,
    "parameters": pl.Int64,
    **dict.fromkeys(("train_s", "measure_s"), pl.Float64),
    **dict.fromkeys(("state", "message", "run_id"), pl.String),
    **dict.fromkeys(ORIGIN, pl.String),
    "started": pl.Float64,
}
ORDER = ("task", "entry", "phase", "steps", "lr", "seed", "seed_init", "run_id", "split")
MEASURED = ("error", "loss", "n", "n_seq", "guess")
# Phases that the protocol does not have: a scored run with another seed, and any other run.
OTHER_SEEDS, OTHER = "other_seeds", "other"


def shipped_file(name: str) -> Path:
    """Return the place of a file that ships with the package; there may be no such file."""
    return Path(str(files("pe_lab.suite"))) / "shipped" / name


def read_shipped(
    suite: Suite, kind: str = "", schema: Mapping[str, Any] = MappingProxyType(SCHEMA)
) -> pl.DataFrame:
    """Return the rows that ship, of this version of the suite and of the one that it continues.

    Args:
        kind: ``.again`` for the runs that were made a second time, ``.why`` for diagnoses.
    """
    path = shipped_file(f"{suite.name}{kind}.parquet")
    rows = pl.read_parquet(path) if path.exists() else pl.DataFrame(schema=schema)
    earlier = [load_suite(suite.continues)] if suite.continues else []
    before = [read_shipped(one, kind, schema) for one in earlier]
    parts = [rows.filter(pl.col("suite") == suite.version).select(*schema), *before]
    return pl.concat(parts).filter(pl.col("task").is_in([*suite.tasks]))


def read_own(suite: Suite, runs_dir: Path, folder: str | Path | None = None) -> pl.DataFrame:
    """Return the rows of the finished and failed runs below ``runs_dir``; none without a folder.

    Args:
        folder: of ``--config-dir``, which may have the encodings of these runs.
    """
    if not runs_dir.is_dir():
        return pl.DataFrame(schema=SCHEMA)
    return rows_of(suite, read_runs(runs_dir), folder)


def rows_of(suite: Suite, runs: pl.DataFrame, folder: str | Path | None = None) -> pl.DataFrame:
    """Return the rows of those of these runs that are of the suite, finished or failed.

    A run that failed because memory or disk space ran out says nothing about its entry.

    Args:
        runs: as ``read_runs`` returns them.
    """
    tasks = {task.digest: name for name, task in suite.tasks.items()}
    known = pl.col("task_digest").is_in([*tasks]) & pl.col("state").is_in(["finished", "failed"])
    if "by_machine" in runs.columns:
        known &= ~pl.col("by_machine").cast(pl.Boolean, strict=False).fill_null(value=False)
    rows: list[dict[str, Any]] = []
    for (pe,), of_pe in runs.filter(known).group_by("pe", maintain_order=True):
        # Of an encoding whose yaml is not here, only what differs between its runs is known.
        is_known = pe in choices("pe", folder)
        keys = [
            key
            for key in of_pe.columns
            if key.startswith("model.")
            or (key.startswith("pe.") and (is_known or of_pe[key].n_unique() > 1))
        ]
        for _, of_setting in of_pe.group_by("setting", maintain_order=True):
            entry = _name_entry(suite, of_setting.row(0, named=True), keys, folder)
            for run in of_setting.iter_rows(named=True):
                rows += _run_rows(suite, run, tasks[run["task_digest"]], entry)
    return pl.DataFrame(rows, SCHEMA).sort(ORDER)


def _run_rows(suite: Suite, run: Mapping[str, Any], task: str, entry: str) -> list[dict[str, Any]]:
    path = Path(run["path"])
    seed_init = run["seed"] if run.get("seed.init") is None else run["seed.init"]
    facts = {
        "suite": suite.version, "task": task, "entry": entry, "pe": run["pe"],
        "model": run.get("model"), "lr": run["train.lr"], "seed": run["seed"],
        "seed_init": seed_init, "steps": run["train.steps"],
        "phase": phase_of(suite, task, entry, {**run, "seed_init": seed_init}),
        "parameters": run.get("params/total"), "train_s": run.get("time/train_s"),
        "measure_s": run.get("time/measure_s"), "state": run["state"], "message": run["message"],
        "run_id": "-".join(path.parts[-3:]), **read_origin(path),
    }  # fmt: skip
    splits = run["splits"] or [IN_DOMAIN, *suite.tasks[task].generalises]
    return [
        {**facts, "split": split, **{m: run.get(metric_name(split, m)) for m in MEASURED}}
        for split in splits
    ]


def phase_of(suite: Suite, task: str, entry: str, run: Mapping[str, Any]) -> str:
    """Return ``tuning``, ``score``, ``steps_x2``, ``other_seeds`` or ``other``."""
    protocol, seed = suite.protocol, run["seed"]
    times, left = divmod(run["train.steps"], suite.steps(task, entry))
    tried = any(abs(run["train.lr"] / rate - 1) < 1e-9 for rate in protocol.all_rates)
    if left or seed != run["seed_init"] or not tried:
        return OTHER
    if times > 1:
        scored = seed < max(protocol.seeds, protocol.more_seeds)
        return f"steps_x{times}" if times in protocol.longer and scored else OTHER
    if seed in protocol.tuning_seeds:
        return TUNING
    return SCORE if seed < max(protocol.seeds, protocol.more_seeds) else OTHER_SEEDS


def _name_entry(
    suite: Suite, run: Mapping[str, Any], keys: Sequence[str], folder: str | Path | None
) -> str:
    """Return the name of a run's entry: the one from which it departs least, and how."""
    pe, model, positions, names = run["pe"], run.get("model") or "", run.get("positions"), []
    own = [name for column in suite.columns if (name := suite.named(pe, column))]
    what = {f"model={model}", f"pe={pe}"}
    of_suite = [entry for entry in suite.all_entries() if what <= {*suite.words(entry)}]
    for entry in of_suite or own:
        words = dict(word.split("=", 1) for word in (*suite.common, *suite.words(entry)))
        expected = {**yaml_keys("model", model, None), **yaml_keys("pe", pe, folder)}
        expected |= {"model": model, "positions": "sequential"} | words
        now = {"model": model, "positions": positions or "sequential"}
        parts = [
            f"{key.removeprefix('pe.')}={text(value)}"
            for key, value in (now | {key: run[key] for key in keys}).items()
            if not key.endswith("_target_")
            and not _equals(value, expected.get(key), key in run["null_keys"])
        ]
        names.append(" ".join([entry, *parts]))
    return min(names, key=lambda name: name.count(" "))


def _equals(value: Any, expected: Any, was_null: bool) -> bool:
    """Return whether a recorded value is the expected one, or follows from other keys."""
    if expected is None or str(expected) == "null":
        return value is None or was_null
    return str(expected).startswith("${") or same(value, expected)


@cache
def yaml_keys(group: str, name: str, folder: str | Path | None) -> Mapping[str, Any]:
    """Return the keys of a yaml of conf/ or of the user's folder with their values."""
    path = choices(group, folder).get(name)
    return {} if path is None else flat({group: read_yaml(path)})


def read_origin(path: Path) -> dict[str, Any]:
    """Return when a run was begun, and with which revision, torch, machine and Python."""
    with suppress(KeyError, IndexError), damage_named("its machine is unknown"):
        starts: list[Any] = RunFolder(path).starts()
        last, system = starts[-1], str(starts[-1].get("platform", "")).split("-")
        parts = (system[0], *({*system} & {"x86_64", "aarch64", "arm64", "AMD64"}))
        speed = last.get("gpu") or last.get("cpu_capability") or ""
        threads = f"{last['threads']} threads" if last.get("threads", 1) != 1 else ""
        return {
            "started": starts[0]["time"],
            "revision": (last.get("git_revision") or "")[:12] or None,
            "torch": last["versions"].get("torch"),
            "machine": " ".join(filter(None, (*parts, speed, threads))),
            "processor": last.get("processor"),
            "python": last.get("python"),
        }
    return {}
