"""The yamls to choose from. This module imports neither Hydra nor torch, as help and completion
must be fast."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pe_lab.core.config_dir import conf, plugins

CHOICES = ("task", "pe", "positions", "model", "train/optimizer", "experiment")
"""The groups that users choose from, as the help lists them."""


@cache
def choices(group: str) -> Mapping[str, Path]:
    """Name -> yaml of each option of a group, with those of installed packages; those in its
    folders are ``folder/name``."""
    folders = [folder / group for folder in (*plugins(), conf())]
    found = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in folders
        for path in folder.rglob("*.yaml")
    }
    return dict(sorted(found.items()))


def bare_word(word: str) -> str:
    """The message for a word that should be key=value."""
    message = f"{word} is neither a command nor key=value: "
    if word in CHOICES:
        return f"{message}write {word}=NAME without spaces"
    if found := [group for group in CHOICES if word.lower() in map(str.lower, choices(group))]:
        return f"{message}did you mean {found[0]}={word.lower()}?"
    return f"{message}see pe-lab --help"
