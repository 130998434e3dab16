"""A submission to the leaderboard: one zip file with the records of an entry's runs in a suite.

submission.json    suite, entry, and the SHA-256 of every other file; closed by its own digest
runs/TASK/ENTRY/seedK-HASH/    of each run what is recorded, without checkpoints
code/              the files of --config-dir
"""

import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
import polars as pl

from pe_lab import __version__
from pe_lab.core.config_dir import refuse_foreign
from pe_lab.core.errors import DamagedError, PeLabError, UsageError, reason
from pe_lab.core.files import read_file
from pe_lab.evaluate.verify import problems
from pe_lab.results.leaderboard.families import halves
from pe_lab.results.leaderboard.rows import Found, suite_runs
from pe_lab.results.leaderboard.scores import chosen_rates
from pe_lab.results.suite import SCORE, Suite
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.schema import digest_of, sealed, unsealed

MANIFEST = "submission.json"
RECORDS = (
    *("summary.json", "config.yaml", "overrides.yaml", "environment.json", "status.json"),
    "metrics.jsonl",
)
MODEL = "transformer"
"""Of a suite whose yaml names no model."""
LARGEST = 2**30
"""Bytes of all files of a submission."""
Entry = list[tuple[str, bytes]]


def packed(suite: Suite, entry: str, found: Found, config_dir: Path | None) -> bytes:
    """The file with all runs of an entry in each column, the failed ones included.

    Raises:
        UsageError: there are none, a file of one is damaged, or its class is missing or named
            by no yaml.
    """
    rows = found.rows.filter(pl.col("entry").is_in(in_columns(found.rows, suite, entry)))
    if rows.is_empty():
        known = ", ".join(found.rows["entry"].unique().sort()) or "none"
        raise UsageError(f"submit pe={entry}: suite {suite.name} has no runs of it (runs: {known})")
    files: Entry = []
    for run_id in rows["run_id"].unique().sort():
        path = found.folders[run_id]
        if wrong := problems(path):
            raise UsageError(f"submit pe={entry}: {wrong[0].sentence}")
        foreign = [name for start in RunFolder(path).starts() for name in start.get("code", {})]
        if foreign and config_dir is None:
            raise UsageError(
                f"submit pe={entry}: its class {foreign[0]} belongs to the submission: give "
                "--config-dir FOLDER with its file and yaml"
            )
        # The check makes two of these runs again, from the submission's own folder.
        if summary := RunFolder(path).summary():
            refuse_foreign(summary["config"], path)
        kept = [path / name for name in RECORDS] + sorted(path.glob("git-*.diff"))
        name = "/".join(path.parts[-3:])
        files += [(f"runs/{name}/{one.name}", read_file(one)) for one in kept if one.is_file()]
    files += _code(config_dir)
    manifest = {
        "suite": suite.version,
        "entry": halves(suite, entry)[0],
        "pe_lab": __version__,
        "files": {name: digest_of(content) for name, content in files},
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in [(MANIFEST, sealed(manifest).encode()), *files]:
            # With a fixed time, so that the same runs make the same file.
            archive.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _code(config_dir: Path | None) -> Iterable[tuple[str, bytes]]:
    for path in sorted(config_dir.rglob("*")) if config_dir else ():
        if path.suffix in (".py", ".yaml") and path.is_file() and not path.is_symlink():
            yield f"code/{path.relative_to(config_dir).as_posix()}", read_file(path)  # type: ignore[arg-type]


def unpacked(path: Path, to: Path) -> dict[str, Any]:
    """The manifest of a submission, whose files are written below ``to``. Nothing of it is run.

    Raises:
        UsageError: it is not a submission.
        DamagedError: a file is not as it was packed, missing or added.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > LARGEST:
                raise UsageError(f"{path} has more than {LARGEST >> 20} MiB: no submission does")
            files = {name: archive.read(name) for name in archive.namelist()}
        manifest: dict[str, Any] = orjson.loads(unsealed(files.pop(MANIFEST), path / MANIFEST))
        for key, kind in {"suite": str, "entry": str, "files": dict}.items():
            if not isinstance(manifest.get(key), kind):
                raise TypeError(f"its {MANIFEST} has no {key} of type {kind.__name__}")
        recorded = manifest["files"]
    except PeLabError:
        raise
    # Of any kind: zipfile and each kind of compression have their own.
    except Exception as error:
        raise UsageError(
            f"{path} is not a submission ({reason(error)}): "
            f"pe-lab submit pe=NAME to={path.name} makes one"
        ) from None
    for name in sorted(files.keys() | recorded.keys()):
        parts = PurePosixPath(name).parts
        if name not in files or name not in recorded or digest_of(files[name]) != recorded[name]:
            raise DamagedError(f"{path}: {name} is not as it was packed: ask for the file again")
        if ".." in parts or parts[:1] not in (("runs",), ("code",)):
            raise DamagedError(f"{path}: {name} would be written outside of its folder")
        target = to.joinpath(*parts)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[name])
        except OSError as error:
            raise DamagedError(
                f"{path}: {name[:99]} cannot be unpacked ({error.strerror}): pe-lab submit makes "
                "no such name"
            ) from None
    return manifest


def faults(runs: Path, suite: Suite, manifest: dict[str, Any]) -> Iterator[str]:
    """What is wrong with an unpacked submission: sentences; none where nothing is."""
    if manifest["suite"] != suite.version:
        yield f"its runs are of suite {manifest['suite']}, this version has {suite.version}"
        return
    found = suite_runs(runs, suite)
    yield from found.broken
    packed_runs = {"/".join(path.parts[-3:]): path for path in runs.glob("*/*/seed*")}
    for name, path in packed_runs.items():
        wrong = (one.sentence for one in problems(path))
        yield from (one for one in wrong if "which holds the model" not in one)
        if "-".join(path.parts[-3:]) not in found.folders:
            yield f"{name} is not a run of suite {suite.name}"
    belongs = pl.col("entry").is_in(in_columns(found.rows, suite, manifest["entry"]))
    for other in found.rows.filter(~belongs)["entry"].unique().sort():
        yield f"it has runs of {other}, and is a submission of {manifest['entry']}"
    yield from found.versions
    rows = found.rows.filter(belongs)
    if rows.is_empty():
        yield f"it has no run of {manifest['entry']} in suite {suite.name}"
    yield from _left_out(rows, suite)


def in_columns(rows: pl.DataFrame, suite: Suite, entry: str) -> list[str]:
    """The names that an entry has in the columns of the suite: ``mine``, ``mine+conv``, of
    either."""
    base, _ = halves(suite, entry)
    return [name for name in rows["entry"].unique() if halves(suite, name)[0] == base]


def _left_out(rows: pl.DataFrame, suite: Suite) -> Iterator[str]:
    """Of each task that has runs, what the protocol has and the submission lacks."""
    protocol = suite.protocol
    # Of encodings: a model from outside is run in the first column alone.
    models = [word.partition("=")[2] for word in suite.model if word.startswith("model=")]
    ours = (
        rows.filter(pl.col("model").is_in(models or [MODEL]))
        .group_by("task")
        .agg(pl.col("entry").unique())
    )
    for task, entries in ours.sort("task").iter_rows():
        bases = {halves(suite, entry)[0] for entry in entries}
        needed = {name for base in bases for name in suite.scored_in(task, base)}
        for name in sorted(needed - {*entries}):
            yield f"{task}: {name} has no run, and the suite scores it"
    for task, entry, rate, tried in chosen_rates(rows, protocol).sort("task").iter_rows():
        if tried < len(protocol.rates):
            yield (
                f"{task}: {tried} of {len(protocol.rates)} rates were tried for {entry} on all "
                f"tuning seeds{', which ends no search' if protocol.search else ''}"
            )
            continue
        scored = rows.filter(phase=SCORE, task=task, entry=entry, lr=rate)["seed"]
        seeds = suite.score_seeds(task, *halves(suite, entry))
        missing = sorted({*range(seeds)} - {*scored})
        if rate is not None and missing:
            listed = ", ".join(map(str, missing))
            yield f"{task}: the score of {entry} lacks seeds {listed} at the chosen rate {rate:g}"


def cheapest(runs: Path, suite: Suite, count: int) -> list[Path]:
    """The scored runs to make again: the cheapest finished one of each task, the cheapest first."""
    found = suite_runs(runs, suite)
    rows = found.rows.filter(pl.col("phase") == SCORE, state="finished").sort("train_s")
    rows = pl.concat([rows.unique("task", keep="first", maintain_order=True), rows])
    names = rows["run_id"].unique(maintain_order=True).to_list()[:count]
    return [found.folders[name] for name in names]
