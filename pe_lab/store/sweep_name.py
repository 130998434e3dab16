"""Names of sweeps: the same for all jobs, and whenever the same command line is given."""

import hashlib
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from pe_lab.store.run_id import excluded

LONGEST = 100
"""Characters of a name: a folder, a group in wandb and its legend take that much."""


def sweep_name(words: Sequence[str], sweeps: Path) -> str:
    """A folder's name for the sweep of a line: what it runs, swept keys, first start, digest.

    ``flipflop--pe+seed--2026-11-21--3fa2b1c0`` for ``task=flipflop pe=cope,rope seed=0,1,2``.

    Args:
        words: the line's overrides.
        sweeps: where the sweeps' folders are. One of the same line there gives its name.
    """
    asked = sorted(word for word in words if not operational(word))
    digest = hashlib.sha256("\0".join(asked).encode()).hexdigest()[:8]
    for before in sorted(sweeps.glob(f"*--{digest}")):
        return before.name
    keys = swept(words)
    given = {w.lstrip("+").partition("=")[0]: w.partition("=")[2] for w in words}
    subjects = [given[key] for key in ("experiment", "task") if key in given and key not in keys]
    subject = "+".join(subjects).replace("/", "-") or "sweep"
    room = LONGEST - len(f"{subject}----{date.today()}--{digest}")
    while len("+".join(keys)) > room and len(keys) > 1:
        keys = keys[:-1]
    return "--".join([subject, "+".join(keys) or "one", date.today().isoformat(), digest])


def keys_of(name: str) -> tuple[str, ...]:
    """The swept keys that a sweep's name tells; none of a name that is not of this form."""
    parts = name.split("--")
    return tuple(parts[1].split("+")) if len(parts) == 4 else ()


def swept(words: Sequence[str]) -> tuple[str, ...]:
    """The keys for which a line asks several values, in its order."""
    keys = []
    for word in words:
        try:
            (override,) = OverridesParser.create().parse_overrides([word])
        except OverrideParseException:
            continue
        if override.is_sweep_override():
            keys.append(str(override.key_or_group))
    return tuple(keys)


def operational(word: str) -> bool:
    """Whether an override changes no run's numbers: where and how it is done, not what."""
    key = word.lstrip("+~").partition("=")[0]
    return key.partition("/")[0].partition(".")[0] == "hydra" or excluded(key)
