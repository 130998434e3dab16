"""The yamls to choose from. This module imports neither Hydra nor torch, as help and completion
must be fast."""

from pathlib import Path

from pe_lab import __path__ as package

CHOICES = ("task", "pe", "positions", "model", "train/optimizer", "experiment")
"""The groups that users choose from, as the help lists them."""


def choices(group: str) -> dict[str, Path]:
    """Name -> yaml of each option of a group; those in its folders are ``folder/name``."""
    conf = next(path for base in package if (path := Path(base) / "conf").is_dir())
    folder = conf / group
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.yaml"))
    }
