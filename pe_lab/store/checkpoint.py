"""Checkpoints: tensors and plain data, written atomically, loaded without unpickling code."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from pe_lab.core.errors import DamagedError, MachineError, cannot_read, reason
from pe_lab.core.files import read_file, replace_file
from pe_lab.store.schema import REMEDY, digest_of

FORMAT = 2
MARK = b"pe-lab sha256 "
COMMENT_BYTES = 2 + len(MARK) + 64


def _whole(value: Any) -> Any:
    """Clone views: torch.save would write the whole storage of each."""
    if isinstance(value, dict):
        return {key: _whole(part) for key, part in value.items()}
    if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def save(path: Path, run: str, state: dict[str, Any]) -> str:
    """Write the state of a run so that a kill at any moment leaves the old file or the new one.

    Args:
        run: the identity of the run, which ``load`` compares.

    Returns:
        The file's digest.
    """
    # Written directly to the file, torch.save would misreport a full disk.
    content = io.BytesIO()
    torch.save(_whole({"format": FORMAT, "run": run, **state}), content)
    zipped = content.getbuffer()[:-2]
    comment = digest_comment(zipped)
    try:
        replace_file(path, zipped, comment)
    except OSError as error:
        raise MachineError(
            f"the checkpoint {path} cannot be written ({error}): the one before it is kept; "
            "make room or choose another runs_dir, then run the same command again"
        ) from None
    return comment[-64:].decode()


def load(path: Path, run: str | None, digest: str | None = None) -> dict[str, Any]:
    """The state that ``save`` wrote.

    Args:
        run: the identity of the run that it must be of; None: any.
        digest: that of the file, if it is recorded elsewhere too.

    Raises:
        DamagedError: the file is damaged, of another run, or no checkpoint.
    """
    try:
        content = memoryview(read_file(path))
    except OSError as error:
        message = f"the checkpoint {path} cannot be read ({error}): {REMEDY}"
        raise cannot_read(message, error) from None
    zipped, comment = content[:-COMMENT_BYTES], content[-COMMENT_BYTES:]
    if comment != digest_comment(zipped):
        raise DamagedError(
            f"the checkpoint {path} ({len(content)} bytes) does not fit its digest, it is damaged, "
            f"cut off or no checkpoint of this program: {REMEDY}"
        )
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise DamagedError(
            f"the checkpoint {path} holds more than tensors and plain data and is not opened: "
            f"{REMEDY}"
        ) from None
    except Exception as error:  # of any kind, where a file with a digest is no checkpoint
        raise DamagedError(
            f"the checkpoint {path} cannot be read ({reason(error)}): {REMEDY}"
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        held = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise DamagedError(
            f"the checkpoint {path} has format {held}, this program reads {FORMAT}: {REMEDY}"
        )
    if run not in (None, state.get("run")):
        raise DamagedError(
            f"the checkpoint {path} is of the run {state.get('run')}, not of {run}: {REMEDY}"
        )
    if digest not in (None, comment[-64:].tobytes().decode()):
        raise DamagedError(
            f"the checkpoint {path} is not the one that summary.json was measured with: {REMEDY}"
        )
    return state


def digest_comment(zipped: memoryview) -> bytes:
    """The end of the file: the length of the zip archive's comment, and the digest as the comment.
    Any reader of torch's format reads it."""
    comment = MARK + digest_of(zipped).encode()
    return len(comment).to_bytes(2, "little") + comment
