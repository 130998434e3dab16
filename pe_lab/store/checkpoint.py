"""Checkpoints: tensors and plain data, written atomically, loaded without unpickling code."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from pe_lab.common.errors import RunError, UsageError
from pe_lab.common.files import replace_file

FORMAT = 1


def _whole(value: Any) -> Any:
    """Clone views: torch.save would write the whole storage of each."""
    if isinstance(value, dict):
        return {key: _whole(part) for key, part in value.items()}
    if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def save(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` so that a kill at any moment leaves the old file or the new one."""
    # Written directly to the file, torch.save would misreport a full disk.
    content = io.BytesIO()
    torch.save(_whole({"format": FORMAT, **state}), content)
    try:
        replace_file(path, lambda handle: handle.write(content.getbuffer()))
    except OSError as error:
        raise RunError(
            f"the checkpoint {path} cannot be written ({error}): the one before it is kept; "
            "make room or choose another runs_dir, then run the same command again"
        ) from None


def load(
    path: Path, remedy: str = "put back a copy, or remove the file to train this run from the start"
) -> dict[str, Any]:
    """The state that ``save`` wrote; UsageError, with the remedy, where the file is not one."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UsageError(
            f"the checkpoint {path} holds more than tensors and plain data and is not opened: "
            f"{remedy}"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, zipfile.BadZipFile) as error:
        size = path.stat().st_size if path.exists() else 0
        raise UsageError(
            f"the checkpoint {path} ({size} bytes) cannot be read, it is cut off or no "
            f"checkpoint ({str(error).splitlines()[0] if str(error) else 'empty'}): {remedy}"
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise UsageError(
            f"the checkpoint {path} has format {found}, this program reads {FORMAT}: {remedy}"
        )
    return state
