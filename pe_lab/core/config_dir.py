"""The folder of the package's yamls, and the one that ``--config-dir`` adds to it."""

import importlib
import sys
from pathlib import Path

from pe_lab import __path__ as package
from pe_lab.core.errors import UsageError


def conf() -> Path:
    """The folder of the yamls."""
    return next(path for base in package if (path := Path(base) / "conf").is_dir())


def use_config_dir(config_dir: str | Path) -> Path:
    """The folder of ``--config-dir``; the classes in it can be imported from now on.

    They come after all that is installed: a file there hides no module.

    Raises:
        UsageError: it is not a folder.
    """
    folder = Path(config_dir).absolute()
    if not folder.is_dir():
        raise UsageError(f"--config-dir {config_dir} is not a folder: give the one of your yamls")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    # A file may have been written since the last import.
    importlib.invalidate_caches()
    return folder
