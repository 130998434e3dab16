"""How the files of a run folder are written and read: digests, and the one error for damage.

A digest (SHA-256) detects a flipped bit, a torn copy or an edited digit. JSON objects close with
theirs; the digests of all other files are in summary.json.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from pe_lab.core.errors import DamagedError, PeLabError, reason

SEAL = b',\n "digest": "'
REMEDY = "put back a copy, or make the run again with force=true, which sets this folder aside"
NO_FIT = "it does not fit its digest: it was damaged or edited after it was written"


def digest_of(content: bytes | memoryview) -> str:
    """The SHA-256 of some bytes, 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def reading(path: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Whatever fails while a file is read and parsed is a DamagedError that names it."""
    try:
        yield
    except PeLabError:
        raise
    except Exception as error:
        raise DamagedError(f"{path} cannot be read ({reason(error)}): {remedy}") from error


def sealed(value: Mapping[str, Any]) -> str:
    """JSON, one key on each line, closed by the digest of everything before it."""
    body = json.dumps(value, indent=1, allow_nan=False).removesuffix("\n}")
    return f'{body}{SEAL.decode()}{digest_of(body.encode())}"\n}}\n'


def unsealed(content: bytes) -> bytes:
    """The JSON that ``sealed`` closed with a digest; ValueError if the digest does not fit."""
    body, _, end = content.rpartition(SEAL)
    if end != f'{digest_of(body)}"\n}}\n'.encode():
        raise ValueError(NO_FIT)
    return body + b"\n}"


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The JSON object of a sealed file; None if there is no such file."""
    if not path.exists():
        return None
    with reading(path):
        return dict(orjson.loads(unsealed(path.read_bytes())))


def sealed_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """JSON lines, and a last line with their digest."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return lines + json.dumps({"digest": digest_of(lines.encode())}) + "\n"


def read_sealed_lines(path: Path, remedy: str) -> list[dict[str, Any]]:
    """The rows that ``sealed_lines`` wrote; none if there is no such file."""
    if not path.exists():
        return []
    with reading(path, remedy):
        rows = [dict(orjson.loads(line)) for line in path.read_bytes().splitlines()]
        last = rows.pop()
        if sealed_lines(rows).splitlines()[-1] != json.dumps(last):
            raise ValueError(NO_FIT)
        return rows
