"""Whether the files of a run folder are those that the run wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pe_lab.common.errors import PeLabError, UsageError
from pe_lab.common.files import read_file
from pe_lab.evaluation.record import NAME, read_evaluations
from pe_lab.store import checkpoint
from pe_lab.store.digests import REMEDY, SEAL, digest_of, does_not_fit
from pe_lab.store.read_back import read_config
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import identity


def problems(path: Path) -> list[str]:
    """What is wrong in a run folder, a sentence for each file; empty where nothing is.

    Every file that is read back is checked against its schema, and what has a digest against it:
    the checkpoint, summary.json, the rows of metrics.jsonl that either of them counts, and each row
    of evaluations.jsonl.
    """
    folder = RunFolder(path)
    found = []

    def check(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except FileNotFoundError:
            return None
        except PeLabError as error:
            found.append(str(error))
        except OSError as error:
            found.append(f"{error.filename} cannot be read ({error.strerror}): make it readable")
        return None

    summary = check(folder.summary)
    if summary is not None:
        check(_check_summary, folder, summary)
    for function in (folder.status, folder.starts, folder.tracked):
        check(function)
    check(read_config, path / "config.yaml")
    if summary is not None:
        check(folder.rows)
    check(read_evaluations, path / NAME)
    state = None
    if folder.checkpoint.exists():
        digest = ((summary or {}).get("digests") or {}).get("checkpoint.pt")
        of = summary.get("identity") if summary else folder.identity
        state = check(checkpoint.load, folder.checkpoint, of, digest)
    elif summary is not None:
        found.append(f"{folder.checkpoint} is missing, which holds the model: {REMEDY}")
    if state is not None and summary is None:
        check(_check_metrics, folder, *state["metrics_mark"])
    return found


def _check_summary(folder: RunFolder, summary: dict[str, Any]) -> None:
    path = folder.path / "summary.json"
    if SEAL not in read_file(path):
        raise UsageError(
            f"{path} has no digest, and cannot be checked: make the run again with force=true"
        )
    made = identity(summary["config"], summary.get("contents"))
    if made != (of := summary.get("identity")):
        raise UsageError(f"{path} has the configuration of {made}, not of {of}: {REMEDY}")


def _check_metrics(folder: RunFolder, size: int, digest: str) -> None:
    if digest_of(read_file(folder.metrics)[:size]) != digest:
        raise UsageError(does_not_fit(folder.metrics, "digest in the checkpoint"))
