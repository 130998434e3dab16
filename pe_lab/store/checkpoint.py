"""checkpoint.pt: tensors and plain data, written atomically, loaded without running its code."""

import io
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch

from pe_lab.core.errors import writing
from pe_lab.core.files import replace_file
from pe_lab.store.run_folder import NO_FIT, RunFolder, digest_of, report_damage


def save(path: Path, state: dict[str, Any]) -> str:
    """Write the state of a run; a kill at any moment leaves the old file or the new one.

    Returns:
        The file's digest.
    """
    # Written directly to the file, torch.save would misreport a full disk.
    stream = io.BytesIO()
    torch.save(state, stream)
    with writing(path):
        replace_file(path, stream.getbuffer())
    return digest_without_comment(stream.getbuffer())


def load(path: Path, digest: str | None = None) -> dict[str, Any]:
    """Read the state that ``save`` wrote.

    Args:
        digest: the one that summary.json has for this file; None: any.

    Raises:
        DamagedError: the file is missing or damaged, or is not that of the summary.
    """
    with report_damage(path):
        content = path.read_bytes()
        # torch.load does not compare the checksums of its archive.
        if ZipFile(io.BytesIO(content)).testzip() is not None:
            raise ValueError(NO_FIT)
        if digest not in (None, digest_without_comment(content)):
            raise ValueError("it is not the one that summary.json was measured with")
        return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))


def digest_without_comment(content: bytes | memoryview) -> str:
    """Return the digest of an archive without its comment, in which version 0.2 wrote the
    digest."""
    comment = ZipFile(io.BytesIO(content)).comment
    return digest_of(content[: -2 - len(comment)])


def check_digests(folder: RunFolder) -> None:
    """Compare all files of a run with their digests.

    Raises:
        DamagedError: one does not fit; it is named.
    """
    digests = (folder.summary() or {}).get("digests", {})
    folder.status()
    for name in digests.keys() - {"checkpoint.pt"}:
        folder.parse_digested(name, bytes)
    if "checkpoint.pt" in digests or folder.checkpoint.exists():
        load(folder.checkpoint, digests.get("checkpoint.pt"))
    for name in ("evaluations.jsonl", "why.jsonl"):
        folder.record(name, f"remove {name}, and measure again")
