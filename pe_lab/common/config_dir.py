"""The folder of the package's yamls, and the one that ``--config-dir`` adds to it.

A recorded configuration may come from somebody else, and importing a module runs it. Three kinds of
classes are imported for it: those of pe_lab, those that a yaml of ``--config-dir`` names, and those
that are already imported.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


_named: set[str] = set()


def trust(config_dir: str | None) -> None:
    """Allow the classes that the yamls of a folder name.

    Raises:
        UsageError: it is not a folder, or a yaml cannot be read.
    """
    if config_dir is None:
        return
    check_config_dir(config_dir)
    importable(config_dir)
    # Imported here: help and completion need no yaml.
    import yaml

    for path in sorted(Path(config_dir).rglob("*.yaml")):
        try:
            _named.update(classes(yaml.safe_load(path.read_text("utf-8"))))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise UsageError(f"{path} is no yaml ({error}): correct or remove it") from None


def importable(folder: str) -> None:
    """Let the classes in the files of a folder of yamls be imported, after all that is installed:
    a file there can hide no module."""
    path = str(Path(folder).absolute())
    if path not in sys.path:
        sys.path.append(path)
    # A file written since the last import.
    importlib.invalidate_caches()


def refuse_foreign(config: Any, path: Path) -> None:
    """UsageError if the configuration of the run in ``path`` names a class that is not allowed."""
    for name in classes(config):
        module, _, last = name.rpartition(".")
        # Not by hasattr, with which a module may import another one.
        loaded = last in vars(sys.modules.get(module, object))
        if not (loaded or name.startswith("pe_lab.") or name in _named):
            raise UsageError(
                f"{path} names the class {name}, which is not of pe_lab and is not imported for a "
                "recorded run: if you trust that file, give --config-dir FOLDER with a yaml whose "
                f"_target_ or factory is {name}"
            )


def classes(value: Any, key: str = "") -> Iterator[str]:
    """The values of ``_target_``, dotted ones of ``optimizer`` and ``module:function`` of
    ``factory`` as ``module.function``, at any depth."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from classes(part, str(name))
    elif isinstance(value, list):
        for part in value:
            yield from classes(part)
    elif isinstance(value, str) and (key == "_target_" or (key == "optimizer" and "." in value)):
        yield value
    elif isinstance(value, str) and key == "factory" and ":" in value:
        yield value.replace(":", ".")
