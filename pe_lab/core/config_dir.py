"""The folder of the package's yamls, the one that ``--config-dir`` adds to it, and those that
installed packages bring.

A recorded configuration may come from somebody else, and importing a module runs it. Three kinds of
classes are imported for it: those of pe_lab, those that a yaml of ``--config-dir`` or of such a
package names, and those already imported that derive from a class of pe_lab. A ``factory`` may be
any function: only one that such a yaml names is called.
"""

import importlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from inspect import isclass
from pathlib import Path
from typing import Any

from pe_lab import __path__ as package
from pe_lab.core.errors import UsageError

logger = logging.getLogger("pe_lab")


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
    _trust(sorted(Path(config_dir).rglob("*.yaml")))


def _trust(paths: Iterable[Path]) -> None:
    # Imported here: help and completion need no yaml.
    import yaml

    for path in paths:
        try:
            _named.update(classes(yaml.safe_load(path.read_text("utf-8"))))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise UsageError(f"{path} is no yaml ({error}): correct or remove it") from None


GROUPS = {"pe_lab.encodings": "pe", "pe_lab.tasks": "task", "pe_lab.models": "model"}
"""Group of entry points -> group of yamls."""


@cache
def plugins() -> tuple[Path, ...]:
    """The folders that installed packages bring, each laid out as that of ``--config-dir``.

        [project.entry-points."pe_lab.encodings"]
        decay = "pe_lab_decay"

    says that the folder of the package ``pe_lab_decay`` has ``pe/decay.yaml``. A package with a
    fault is left out, with a warning.
    """
    packages: dict[str, list[EntryPoint]] = {}
    every = entry_points()
    for entry in (one for group in GROUPS for one in every.select(group=group)):
        packages.setdefault(entry.value, []).append(entry)
    found: dict[Path, set[str]] = {}
    for value, entries in sorted(packages.items()):
        files = {f"{GROUPS[entry.group]}/{entry.name}.yaml" for entry in entries}
        try:
            folder = _plugin(value, files)
            for other, theirs in found.items():
                if both := sorted(files & theirs):
                    raise UsageError(f"{other} has {both[0]}, too: uninstall one of them")
            found[folder] = files
        # Of any kind: to find a package in another one runs code of it.
        except (Exception, SystemExit) as error:
            name = next((entry.dist.name for entry in entries if entry.dist), value)
            reason = " ".join(str(error).split()) or type(error).__name__
            logger.warning("the installed package %s is left out: %s", name, reason)
    return tuple(found)


def _plugin(package: str, files: Iterable[str]) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"its entry point names {package}, which is not a package")
    folder = Path(next(iter(spec.submodule_search_locations)))
    for name in sorted(files):
        if not (folder / name).is_file():
            raise UsageError(f"its entry point names {name}, and {folder} has no such file")
    check_config_dir(str(folder))
    _trust(path for group in GROUPS.values() for path in sorted((folder / group).glob("*.yaml")))
    return folder


def plugin_sources() -> list[dict[str, Any]]:
    """``plugins`` as configuration sources of Hydra."""
    return [{"provider": "plugin", "schema": "file", "path": str(one)} for one in plugins()]


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
    plugins()
    for name in classes(config):
        known = ":" not in name and (name.startswith("pe_lab.") or _made_for_us(name))
        if not (known or name in _named):
            raise UsageError(
                f"{path} names the class {name}, which is not of pe_lab and is not imported for a "
                "recorded run: if you trust that file, give --config-dir FOLDER with a yaml whose "
                f"_target_ or factory is {name}"
            )


def _made_for_us(name: str) -> bool:
    """Whether this is a class that is already imported and derives from one of pe_lab."""
    module, _, last = name.rpartition(".")
    # Not by getattr, with which a module may import another one.
    found = vars(sys.modules.get(module, object)).get(last)
    return isclass(found) and any(
        str(one.__module__).startswith("pe_lab.") for one in found.__mro__
    )


def classes(value: Any, key: str = "") -> Iterator[str]:
    """The values of ``_target_``, dotted ones of ``optimizer`` and ``module:function`` of
    ``factory``, at any depth."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from classes(part, str(name))
    elif isinstance(value, list):
        for part in value:
            yield from classes(part)
    elif isinstance(value, str) and (
        key == "_target_"
        or (key == "optimizer" and "." in value)
        or (key == "factory" and ":" in value)
    ):
        yield value
