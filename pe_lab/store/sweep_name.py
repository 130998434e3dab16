"""Names of sweeps: the same for all jobs, and whenever the same command is run again."""

import hashlib
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from pe_lab.store.run_id import excluded

LONGEST = 100
"""The maximum number of characters; a folder, a wandb group and its legend allow that many."""


def sweep_name(words: Sequence[str], sweeps: Path) -> str:
    """The folder name of a command's sweep: subject, swept keys, first start, digest.

    ``flipflop--pe+seed--2026-11-21--3fa2b1c0`` for ``task=flipflop pe=cope,rope seed=0,1,2``.

    Args:
        words: the overrides of the command.
        sweeps: the parent folder; if it holds a sweep of the same command, that name is returned.
    """
    relevant = sorted(word for word in words if not operational(word))
    digest = hashlib.sha256("\0".join(relevant).encode()).hexdigest()[:8]
    for before in sorted(sweeps.glob(f"*--{digest}")):
        return before.name
    keys = swept(words)
    values = {w.lstrip("+").partition("=")[0]: w.partition("=")[2] for w in words}
    subjects = [values[key] for key in ("experiment", "task") if key in values and key not in keys]
    subject = "+".join(subjects).replace("/", "-") or "sweep"
    room = LONGEST - len(f"{subject}----{date.today()}--{digest}")
    while len("+".join(keys)) > room and len(keys) > 1:
        keys = keys[:-1]
    return "--".join([subject, "+".join(keys) or "one", date.today().isoformat(), digest])


def swept(words: Sequence[str]) -> tuple[str, ...]:
    """The keys with several values, in the order of the overrides."""
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
    """Whether an override changes no run's numbers, only where and how it runs."""
    key = word.lstrip("+~").partition("=")[0]
    return key.partition("/")[0].partition(".")[0] == "hydra" or excluded(key)
