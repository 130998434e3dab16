"""The classes that a recorded configuration may name: importing a module runs it.

A run's folder may come from somebody else. Three kinds of classes are imported for it: those of
pe_lab, those that a yaml of ``--config-dir`` names, and those that are already imported.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pe_lab.common.config_dir import check_config_dir
from pe_lab.common.errors import UsageError

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
                f"_target_ is {name}"
            )


def classes(value: Any, key: str = "") -> Iterator[str]:
    """The values of ``_target_``, and dotted ones of ``optimizer``, at any depth."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from classes(part, str(name))
    elif isinstance(value, list):
        for part in value:
            yield from classes(part)
    elif isinstance(value, str) and (key == "_target_" or (key == "optimizer" and "." in value)):
        yield value
