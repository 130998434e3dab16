"""Whether the files of a run folder are those that the run wrote."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pe_lab.core.errors import DamagedError, PeLabError
from pe_lab.core.files import read_file
from pe_lab.evaluate.record import read_evaluations
from pe_lab.store import checkpoint
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import identity
from pe_lab.store.schema import REMEDY, digest_of, does_not_fit, read_config


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file or folder, in a sentence with the remedy.

    Args:
        kind: ``evaluations``: evaluations.jsonl is damaged, ``diagnoses``: why.jsonl is;
            ``misplaced``: tables leave it out.
    """

    sentence: str
    kind: Literal["damaged", "evaluations", "diagnoses", "unreadable", "misplaced"]


def problems(path: Path) -> list[Problem]:
    """What is wrong in a run folder, one for each file; empty where nothing is.

    Every file that is read back is checked against its schema, and what has a digest against it:
    the checkpoint, summary.json, the rows of metrics.jsonl that either of them counts, and
    evaluations.jsonl.
    """
    folder = RunFolder(path)
    found: list[Problem] = []

    def check(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            of_record = function is read_evaluations
            found.append(Problem(str(error), "evaluations" if of_record else "damaged"))
        except PeLabError as error:
            found.append(Problem(str(error), "unreadable"))
        except OSError as error:
            what = f"{error.filename} cannot be read ({error.strerror}): make it readable"
            found.append(Problem(what, "unreadable"))
        return None

    summary, rows = check(folder.summary), None
    if summary is not None:
        check(_check_summary, folder, summary)
        for name in ("config.yaml", "overrides.yaml"):
            check(folder.check_digest, name)
    if not found or summary is not None:
        # These read the summary, too.
        starts, rows = check(folder.starts), check(folder.rows)
        if summary is None:
            check(_check_config, folder, (starts or [{}])[0].get("contents"))
    for function in (folder.status, folder.tracked):
        check(function)
    check(read_evaluations, folder)
    state = None
    if folder.checkpoint.exists():
        digest = summary["digests"].get("checkpoint.pt") if summary else None
        of = summary["identity"] if summary else folder.identity
        state = check(checkpoint.load, folder.checkpoint, of, digest)
    elif summary is not None:
        missing = f"{folder.checkpoint} is missing, which holds the model: {REMEDY}"
        found.append(Problem(missing, "damaged"))
    if state is not None and summary is None and rows is not None:
        check(_check_metrics, folder, *state["metrics_mark"])
    return found


def _check_summary(folder: RunFolder, summary: dict[str, Any]) -> None:
    path = folder.path / "summary.json"
    made = identity(summary["config"], summary.get("contents"))
    if made != (of := summary["identity"]):
        raise DamagedError(f"{path} has the configuration of {made}, not of {of}: {REMEDY}")


def _check_config(folder: RunFolder, contents: dict[str, str] | None) -> None:
    config = read_config(folder.path / "config.yaml")
    if config is not None:
        config.pop("names", None)
        folder.check_identity(identity(config, contents), "config.yaml")


def _check_metrics(folder: RunFolder, size: int, digest: str) -> None:
    content = read_file(folder.metrics) if folder.metrics.exists() else b""
    if digest_of(content[:size]) != digest:
        raise DamagedError(does_not_fit(folder.metrics, "digest in the checkpoint"))
