"""The folder of the package's yamls, and the one that ``--config-dir`` adds to it."""

import os
from pathlib import Path

from pe_lab import __path__ as package
from pe_lab.common.errors import UsageError


def conf() -> Path:
    """The folder of the yamls."""
    return next(path for base in package if (path := Path(base) / "conf").is_dir())


def check_config_dir(config_dir: str) -> None:
    """Refuse a ``--config-dir`` that is not a folder, or that has a yaml of the package's name.

    Training would take the package's yaml instead. An identical copy is allowed.

    Raises:
        UsageError: as above.
    """
    folder = Path(config_dir)
    if not folder.is_dir():
        raise UsageError(
            f"--config-dir {config_dir} is not a folder: give the one that holds your pe/, task/, "
            "model/ or suite/ yamls"
        )
    for ours in sorted(conf().rglob("*.yaml")):
        name = ours.relative_to(conf())
        theirs = folder / name
        if os.path.lexists(theirs) and not (
            theirs.is_file() and theirs.read_bytes() == ours.read_bytes()
        ):
            raise UsageError(
                f"{theirs} is not used: {name.as_posix()} of pe-lab has the same name and comes "
                "first; rename this file"
            )
