"""Digests (SHA-256) of what a run wrote: whether a file still holds it.

They detect damage (a flipped bit, a torn copy, an edited digit), not a forger, who can compute new
ones.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pe_lab.common.errors import DamagedError

SEAL = b',\n "digest": "'
REMEDY = "put back a copy, or make the run again with force=true, which sets this folder aside"


def digest_of(content: bytes | memoryview) -> str:
    """64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def does_not_fit(what: Path | str, digest: str = "digest", remedy: str = REMEDY) -> str:
    """The message for a file, or a part of it, that its digest does not fit."""
    return (
        f"{what} does not fit its {digest}, it was damaged or edited after it was written: {remedy}"
    )


def sealed(value: dict[str, Any]) -> str:
    """JSON, a key a line, closed by the ``digest`` of all before it."""
    body = json.dumps(value, indent=1, allow_nan=False).removesuffix("\n}")
    return f'{body}{SEAL.decode()}{digest_of(body.encode())}"\n}}\n'


def unsealed(content: bytes, path: Path) -> bytes:
    """The JSON that was ``sealed``, without its digest.

    Raises:
        DamagedError: the digest is that of something else, or is missing.
    """
    body, seal, end = content.rpartition(SEAL)
    if not seal or end != f'{digest_of(body)}"\n}}\n'.encode():
        raise DamagedError(does_not_fit(path))
    return body + b"\n}"


def sealed_lines(lines: bytes) -> bytes:
    """JSON lines, and a last line with their ``digest``."""
    return lines + _last_line(lines)


def unsealed_lines(content: bytes, path: Path, remedy: str) -> bytes:
    """The JSON lines that were ``sealed_lines``, without the last one.

    Raises:
        DamagedError: the last line is missing, or is the digest of other lines.
    """
    lines = content[: content.removesuffix(b"\n").rfind(b"\n") + 1]
    if lines + _last_line(lines) != content:
        raise DamagedError(does_not_fit(path, "digest in its last line", remedy))
    return lines


def _last_line(lines: bytes) -> bytes:
    return json.dumps({"digest": digest_of(lines)}).encode() + b"\n"
