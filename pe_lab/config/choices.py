"""The yamls to choose from. This module imports neither Hydra nor torch, as help must be fast."""

from collections.abc import Mapping
from pathlib import Path

from pe_lab.core.config_dir import conf

CHOICES = ("task", "pe", "positions", "model", "train/optimizer", "experiment")
"""The groups that users choose from, as the help lists them."""


def choices(group: str, config_dir: str | Path | None = None) -> Mapping[str, Path]:
    """Name -> yaml of each option of a group; those in its folders are ``folder/name``.

    Args:
        config_dir: a folder of more yamls.
    """
    folders = [*([Path(config_dir)] if config_dir else []), conf()]
    options = {
        path.relative_to(folder / group).with_suffix("").as_posix(): path
        for folder in folders
        for path in (folder / group).rglob("*.yaml")
    }
    return dict(sorted(options.items()))


def bare_word(word: str) -> str:
    """The message for a word that should be key=value."""
    message = f"{word} is neither a command nor key=value: "
    if word in CHOICES:
        return f"{message}write {word}=NAME without spaces"
    for group in CHOICES:
        if word.lower() in map(str.lower, choices(group)):
            return f"{message}did you mean {group}={word.lower()}?"
    return f"{message}see pe-lab --help"
