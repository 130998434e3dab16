"""The yamls to choose from. This module imports neither Hydra nor torch, as help and completion
must be fast."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pe_lab.common.config_dir import conf

CHOICES = ("task", "pe", "positions", "model", "train/optimizer", "experiment")
"""The groups that users choose from, as the help lists them."""


@cache
def choices(group: str) -> Mapping[str, Path]:
    """Name -> yaml of each option of a group; those in its folders are ``folder/name``."""
    folder = conf() / group
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.yaml"))
    }


def bare_word(word: str) -> str:
    """The message for a word that should be key=value."""
    message = f"{word} is neither a command nor key=value: "
    if word in CHOICES:
        return f"{message}write {word}=NAME without spaces"
    if found := [group for group in CHOICES if word.lower() in map(str.lower, choices(group))]:
        return f"{message}did you mean {found[0]}={word.lower()}?"
    return f"{message}see pe-lab --help"
