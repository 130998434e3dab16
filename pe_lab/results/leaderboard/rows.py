"""The runs of a suite as a table, one row for each run and split."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.core.errors import PeLabError
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.results.leaderboard.claims import planned, registered
from pe_lab.results.leaderboard.entries import Place, phase_of, placed
from pe_lab.results.reader import Record, Setting, read_records
from pe_lab.results.suite import Suite
from pe_lab.store.run_folder import RunFolder

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("suite", "task", "entry", "pe", "model", "phase"), pl.String),
    "lr": pl.Float64,
    "seed": pl.Int64,
    "seed_init": pl.Int64,
    "steps": pl.Int64,
    "split": pl.String,
    "error": pl.Float64,
    "loss": pl.Float64,
    "n": pl.Int64,
    "n_seq": pl.Int64,
    "guess": pl.Float64,
    "parameters": pl.Int64,
    "train_s": pl.Float64,
    "measure_s": pl.Float64,
    **dict.fromkeys(
        ("state", "message", "run_id", "revision", "torch", "machine", "processor", "python"),
        pl.String,
    ),
    "planned": pl.String,
    "started": pl.Float64,
}
"""``suite`` name and digest; ``task`` as the suite names it; ``entry`` the encoding or control with
the keys in which it departs from its yaml; ``phase`` see ``phase_of``; ``lr`` the
peak rate; ``seed`` of the data, ``seed_init`` of the weights; ``error`` a share of ``n`` scored
answers in ``n_seq`` sequences, null where the run failed or the encoding does not reach the length;
``guess`` the error of guessing; ``parameters`` of the model; ``train_s`` and ``measure_s`` seconds;
``state`` finished or failed, and why in ``message``; ``run_id`` task-encoding-seed-hash;
``revision`` of git, with + where files were changed; ``machine`` its kind, ``processor`` the model
name; ``python`` the version, as that of ``torch``; ``planned`` the digest of a claim;
``started`` when it was first begun, in seconds since 1970."""
ORDER = (
    *("task", "entry", "phase", "steps", "lr", "seed", "seed_init"),
    *("run_id", "machine", "revision", "split"),
)
STATES = ("finished", "failed")


@dataclass(frozen=True)
class Found:
    """What a folder has of a suite.

    Args:
        rows: of the finished and failed runs.
        lacking: by ``run_id``, the runs that failed because memory or disk space ran out. These say
            nothing about their entry and are not among the rows.
        broken: of each run of any task that cannot be read, or is a copy of another, a sentence.
        versions: of each encoding of the user's whose runs were made with several versions of its
            file, a sentence.
        folders: by ``run_id``, of the runs that are among the rows.
    """

    rows: pl.DataFrame
    lacking: dict[str, Place]
    broken: list[str]
    versions: list[str] = field(default_factory=list)
    folders: dict[str, Path] = field(default_factory=dict)


def suite_rows(runs_dir: Path, suite: Suite) -> pl.DataFrame:
    """The finished and failed runs below ``runs_dir`` that are of the suite; empty where there is
    no such folder. Columns: ``SCHEMA``."""
    return suite_runs(runs_dir, suite).rows


def suite_runs(runs_dir: Path, suite: Suite) -> Found:
    """The rows, and the runs that are not among them; nothing where there is no such folder."""
    if not runs_dir.is_dir():
        return Found(pl.DataFrame(schema=SCHEMA), {}, [])
    records = read_records(runs_dir)
    broken = [one.facts["message"] for one in records if one.facts["state"] == "broken"]
    claims = registered(runs_dir, suite)
    over, lacking = [], {}
    for record, setting, place in placed(records, suite):
        if record.facts.get("by_machine"):
            lacking[run_id(record.facts["path"])] = place
        elif record.facts["state"] in STATES:
            over.append((record, setting, place))
    named = _apart(place for *_, place in over)
    rows = [row for one in over for row in _rows(*one, named[one[2]], suite)]
    own = [one for one in over if one[0].facts["pe"] not in suite.encodings]
    frame = pl.DataFrame(rows, SCHEMA, orient="row").sort(ORDER)
    frame = frame.with_columns(planned=planned(claims))
    folders = {run_id(record.facts["path"]): Path(record.facts["path"]) for record, *_ in over}
    return Found(frame, lacking, broken, list(_versions(own, named)), folders)


def _versions(
    over: Iterable[tuple[Record, Setting, Place]], named: Mapping[Place, str]
) -> Iterable[str]:
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record, _, place in over:
        with suppress(OSError, PeLabError, KeyError, IndexError):
            start: Any = RunFolder(Path(record.facts["path"])).starts()[-1]
            for name, digest in start["code"].items():
                found[named[place], name][digest] += 1
    for (entry, name), runs in found.items():
        if len(runs) > 1:
            yield (
                f"{entry}: its runs were made with {len(runs)} versions of the file of {name} "
                f"({', '.join(map(str, runs.values()))} runs) and are counted together: another "
                "runs_dir begins with none"
            )


def started(path: Path) -> float | None:
    """When the run of a folder was first started, one that ``force`` replaced included, in seconds
    since 1970; None where that was not recorded or cannot be read."""
    times = []
    # What is damaged, `pe-lab verify` says.
    with suppress(PeLabError, KeyError, IndexError):
        for folder in (path, *path.parent.glob(f"{path.name}.replaced-*")):
            times.append(RunFolder(folder).starts()[0]["time"])
        return min(times)
    return None


def run_id(path: str | Path) -> str:
    """The name of the run in a folder."""
    return "-".join(Path(path).parts[-3:])


def _apart(places: Iterable[Place]) -> dict[Place, str]:
    """The entries' names, with the keys in which configurations of one encoding of the user's
    differ, in whichever task: one configuration has one name."""
    values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    distinct = set(places)
    for place in distinct:
        for key, value in place.unknown:
            values[place.entry][key].add(value)
    return {
        place: " ".join(
            [
                place.entry,
                *(
                    f"{key.removeprefix('pe.')}={value}"
                    for key, value in place.unknown
                    if len(values[place.entry][key]) > 1
                ),
            ]
        )
        for place in distinct
    }


def _rows(
    record: Record,
    setting: Setting,
    place: Place,
    entry: str,
    suite: Suite,
) -> Iterable[tuple[Any, ...]]:
    facts, metrics, config = record.facts, record.metrics, setting.config
    seed_init = setting.keys.get("seed.init", facts["seed"])
    run = (
        suite.version,
        place.task,
        entry,
        facts["pe"],
        facts.get("model"),
        phase_of(suite, place, facts["seed"], seed_init, config["train"]),
        float(config["train"]["lr"]),
        facts["seed"],
        seed_init,
        config["train"]["steps"],
    )
    cost = tuple(metrics.get(key) for key in ("params/total", "time/train_s", "time/measure_s"))
    folder = Path(facts["path"])
    made = (
        facts["state"],
        facts.get("message"),
        run_id(record.facts["path"]),
        *environment_of(folder),
        None,
        started(folder),
    )
    if facts["state"] == "finished":
        splits = facts["splits"]
    else:
        splits = [IN_DOMAIN, *suite.tasks[place.task].generalises]
    for split in splits:
        measured = (metrics.get(metric_name(split, m)) for m in MEASURED)
        yield (*run, split, *measured, *cost, *made)


MEASURED = ("error", "loss", "n", "n_seq", "guess")


ARCHITECTURES = ("x86_64", "aarch64", "arm64", "AMD64")
MADE_WITH = ("revision", "torch", "machine", "processor", "python")
"""Columns that ``environment_of`` has."""


def environment_of(folder: Path) -> tuple[str | None, ...]:
    """Revision, version of torch, kind of machine, processor and version of Python of a run's last
    start."""
    # Damaged or missing: `pe-lab verify` says so.
    with suppress(OSError, PeLabError, KeyError, IndexError):
        starts: list[Any] = RunFolder(folder).starts()
        start = starts[-1]
        revision = start.get("git_revision")
        if revision:
            changed = (folder / f"git-{len(starts)}.diff").exists()
            revision = revision[:12] + ("+" if changed else "")
        platform = str(start.get("platform", ""))
        parts = (
            platform.partition("-")[0],
            next((name for name in ARCHITECTURES if name in platform), ""),
            start.get("gpu") or start.get("cpu_capability"),
            f"{start['threads']} threads" if start.get("threads", 1) != 1 else "",
        )
        machine = " ".join(str(part) for part in parts if part)
        python = start.get("python")
        return revision, start["versions"].get("torch"), machine, start.get("processor"), python
    return (None,) * 5
