"""The folder of the package's yamls, the choices in it, and the one that ``--config-dir`` adds.

This module imports neither Hydra nor torch, as help must be fast.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pe_lab import __path__ as package
from pe_lab.core.errors import UsageError, did_you_mean

VARIABLE = "PE_LAB_CONFIG_DIR"
"""Names a folder for every command that has no ``--config-dir``."""
CHOICES = ("task", "pe", "positions", "model", "train/optimizer", "experiment")
"""The groups that users choose from, as the help lists them."""
TEST_TIME = frozenset(
    {
        *("pi", "ntk_old", "ntk_fixed", "ntk_mixed", "yarn", "longrope", "dynamic_ntk"),
        *("rerope", "leaky_rerope", "self_extend"),
    }
)
"""Those of conf/pe whose class has ``at_test_time``; tables are made without importing classes."""


def conf() -> Path:
    """The folder of the yamls."""
    return next(path for base in package if (path := Path(base) / "conf").is_dir())


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


def refuse_bare(word: str, commands: Sequence[str] = ()) -> None:
    """UsageError for a word that is neither a flag, an override nor a command."""
    if not word or word.startswith(("-", "~", "+")) or "=" in word:
        return
    for group in CHOICES:
        if word in choices(group):
            raise UsageError(f"{word} is not a command: did you mean {group}={word}?")
    raise UsageError(
        f"{word} is neither a command nor key=value: {did_you_mean(word, commands)}"
        if commands
        else f"{word} is not key=value, and a command is the first word: pe-lab COMMAND KEY=VALUE"
    )


def use_config_dir(config_dir: str | Path) -> Path:
    """The folder of ``--config-dir``; the classes in it can be imported from now on.

    They come after all that is installed: a file there hides no module.

    Raises:
        UsageError: it is not a folder, or has another yaml of the package's name, which Hydra would
            not read.
    """
    folder = Path(config_dir).absolute()
    if not folder.is_dir():
        raise UsageError(f"--config-dir {config_dir} is not a folder: give the one of your yamls")
    hidden = [
        theirs
        for ours in conf().rglob("*/*.yaml")
        if (theirs := folder / ours.relative_to(conf())).is_file()
        and theirs.read_bytes() != ours.read_bytes()
    ]
    if hidden:
        raise UsageError(f"{min(hidden)} has the name of a yaml of pe-lab: give it another one")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    # A file may have been written since the last import.
    importlib.invalidate_caches()
    return folder
