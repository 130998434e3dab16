"""checkpoint.pt: tensors and plain data, written atomically, loaded without running its code."""

import io
from pathlib import Path
from typing import Any

import torch

from pe_lab.core.errors import writing
from pe_lab.core.files import replace_file
from pe_lab.store.files import NO_FIT, digest_of, reading

FORMAT = 2
MARK = b"pe-lab sha256 "
COMMENT_BYTES = 2 + len(MARK) + 64


def save(path: Path, run: str, state: dict[str, Any]) -> str:
    """Write the state of a run; a kill at any moment leaves the old file or the new one.

    Args:
        run: the identity of the run, which ``load`` compares.

    Returns:
        The file's digest.
    """
    # Written directly to the file, torch.save would misreport a full disk.
    content = io.BytesIO()
    torch.save({"format": FORMAT, "run": run, **state}, content)
    zipped = content.getbuffer()[:-2]
    comment = _digest_comment(zipped)
    with writing(path):
        replace_file(path, zipped, comment)
    return comment[-64:].decode()


def load(path: Path, run: str | None = None, digest: str | None = None) -> dict[str, Any]:
    """Read the state that ``save`` wrote.

    Args:
        run: the identity of the run that it must belong to; None: any run.
        digest: the one that summary.json has for this file; None: any.

    Raises:
        DamagedError: the file is missing or damaged, or belongs to another run.
    """
    with reading(path):
        content = memoryview(path.read_bytes())
        zipped, comment = content[:-COMMENT_BYTES], content[-COMMENT_BYTES:]
        if comment != _digest_comment(zipped):
            raise ValueError(NO_FIT)
        state: dict[str, Any] = torch.load(
            io.BytesIO(content), map_location="cpu", weights_only=True
        )
        if state["format"] != FORMAT:
            raise ValueError(f"it has format {state['format']}, this program reads {FORMAT}")
        if run not in (None, state["run"]):
            raise ValueError(f"it belongs to the run {state['run']}, not to {run}")
        if digest not in (None, comment[-64:].tobytes().decode()):
            raise ValueError("it is not the one that summary.json was measured with")
        return state


def _digest_comment(zipped: memoryview) -> bytes:
    """The end of the file: the digest as the comment of the zip archive, after its length.

    Any reader of torch's format skips it.
    """
    comment = MARK + digest_of(zipped).encode()
    return len(comment).to_bytes(2, "little") + comment
