"""Tab completion: ``eval "$(pe-lab -sc install=bash)"``, for bash, zsh and fish.

The shell runs ``pe-lab -sc query=SHELL`` at each Tab, with the line so far in COMP_LINE. The keys
of a command are those of its options, and the keys of a run are composed as for training.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from pe_lab.cli.new import KINDS
from pe_lab.cli.train import arguments, register
from pe_lab.config.choices import CHOICES, choices
from pe_lab.config.compose import compose, open_hydra, options_of
from pe_lab.config.overrides import ALL_GROUPS
from pe_lab.config.schema import Config
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.options import Options, choices_of
from pe_lab.results.selection import RunOptions

BASH = """\
_pe_lab_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        "$1" -sc query=bash 2>/dev/null))
    case "${COMPREPLY[0]}" in *[=./,]) compopt -o nospace 2>/dev/null ;; esac
}
complete -F _pe_lab_completion pe-lab
"""
SCRIPTS = {
    "bash": BASH,
    "zsh": f"autoload -U +X bashcompinit && bashcompinit\n{BASH}",
    "fish": "complete -c pe-lab -f -a '(COMP_LINE=(commandline -cp) pe-lab -sc query=fish)'\n",
}
FLAGS = ("-m", "--cfg", "--config-dir", "--help", "--hydra-help", "--resolve", "--version")
FLAG_VALUES = {"--cfg": ("job", "hydra", "all"), "-c": ("job", "hydra", "all")}
GROUPS = (*ALL_GROUPS, "hydra/launcher", "hydra/sweeper")
PATHS = ("runs_dir", "out", "to", "task.file", "result", "file")
"""Keys whose values are files or folders."""
FILTERS = ("task", "pe", "positions", "model", "seed")
"""The filters of a command over runs that are completed."""
NO_RUNS = ("report", "evaluations", "dashboard", "plans")
"""Folders in runs_dir that hold no runs."""


def shell_completion(request: str, verbs: Mapping[str, str]) -> None:
    """Print the script that installs completion, or the candidates for the line.

    Args:
        request: ``install=SHELL`` or ``query=SHELL``.
        verbs: each command and its module.
    """
    action, _, shell = request.partition("=")
    if shell not in SCRIPTS or action not in ("install", "query"):
        raise UsageError(f"-sc {request} is not allowed: give install=bash, zsh or fish")
    if action == "install":
        print(SCRIPTS[shell], end="")
        return
    # A message would break the prompt.
    with suppress(Exception):
        line = os.environ["COMP_LINE"]
        *before, current = re.split(r"\s+", line.lstrip())
        breaks = os.environ.get("COMP_WORDBREAKS", "") if shell == "bash" else ""
        # Bash replaces what follows the last of these characters.
        start = max((current.rfind(char) + 1 for char in breaks), default=0)
        found = candidates(_after_program(before), current, verbs)
        print("\n".join(sorted({word[start:] for word in found})))


def _after_program(words: list[str]) -> list[str]:
    """The words after the program's name, which variables may precede."""
    for number, word in enumerate(words):
        if "=" not in word:
            return words[number + 1 :]
    return []


def candidates(before: list[str], current: str, verbs: Mapping[str, str]) -> list[str]:
    """The words that ``current`` may become, after the words ``before`` it."""
    last, verb = (before[-1], before[0]) if before else ("", "")
    if last in FLAG_VALUES:
        found: Iterable[str] = FLAG_VALUES[last]
    elif last in ("--config-dir", "-cd"):
        found = _paths("", current)
    elif current.startswith("-"):
        found = FLAGS
    elif verb == "list":
        found = CHOICES
    elif verb == "help":
        found = verbs
    elif verb in verbs:
        found = _of_command(verb, verbs[verb], before[1:], current)
    else:
        found = _of_run(before, current)
        if not before:
            found += [*verbs, "help"]
    return [word for word in found if word.startswith(current)]


def _of_command(verb: str, module: str, before: list[str], current: str) -> list[str]:
    """Keys and values of a command's options, and of a run's where it takes them."""
    import_module(module)
    model = next(model for model in _subclasses(Options) if getattr(model, "command", "") == verb)
    fields = {name: field.annotation for name, field in model.model_fields.items()}
    key, equals, value = current.partition("=")
    of_run = [word for word in before if word.partition("=")[0] not in fields]
    if not equals:
        bare = ["--config-dir"] if verb != "new" else [] if before else [*KINDS]
        filters = FILTERS if issubclass(model, RunOptions) else ()
        found = [*bare, *(f"{name}=" for name in (*fields, *filters))]
        return found + (_of_run(of_run, current) if model.of_run else [])
    if model.of_run and key in ("split", "splits"):
        splits = _composed(of_run).get("task", {}).get("splits") or {}
        return _listed(key, value, ["train"] * (key == "split") + [IN_DOMAIN, *map(str, splits)])
    if model.of_run and key not in fields:
        return _of_run(of_run, current)
    if key == "run" or (key == "inspect" and "inspect" in fields):
        return _listed(key, value, _runs(before, value.rpartition(",")[2]))
    if key in CHOICES:
        return _listed(key, value, choices(key))
    if key in PATHS:
        return [f"{key}={path}" for path in _paths("", value)]
    return [f"{key}={choice}" for choice in choices_of(fields.get(key))]


def _subclasses(model: type[Options]) -> list[type[Options]]:
    return [found for below in model.__subclasses__() for found in (below, *_subclasses(below))]


def _of_run(before: list[str], current: str) -> list[str]:
    """Groups, keys and values of a run."""
    sign = current[: len(current) - len(current.lstrip("+~"))]
    key, equals, value = current[len(sign) :].partition("=")
    if equals and key in GROUPS:
        return _listed(sign + key, value, _options(before, key))
    if equals and key in PATHS:
        return [f"{sign}{key}={path}" for path in _paths("", value)]
    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(_composed(before), parent) if parent else _composed(before)
    if equals:
        schema: Any = Config
        for part in key.split("."):
            schema = get_type_hints(schema).get(part) if hasattr(schema, "__mro__") else None
        found = choices_of(type(section[name]) if schema is None else schema)
        return [f"{sign}{key}={choice}" for choice in found]
    prefix = f"{sign}{parent}." if parent else sign
    keys = [
        f"{prefix}{name}{'.' if isinstance(below, DictConfig) and below else '='}"
        for name, below in section.items_ex(resolve=False)
        if name not in ("hydra", "_target_")
    ]
    return keys + [f"{sign}{group}=" for group in GROUPS if not parent]


def _composed(before: list[str]) -> Any:
    """The configuration of a run, or of the first of a sweep, with these words."""
    register()
    return compose(arguments(before))[0]


def _options(before: list[str], group: str) -> list[str]:
    """The options of a group, also those in ``--config-dir``."""
    register()
    hydra = open_hydra(arguments(before))
    try:
        return options_of(hydra, group)
    finally:
        GlobalHydra.instance().clear()


def _listed(key: str, value: str, names: Iterable[str]) -> list[str]:
    """``key=a,b,`` with each name as the last entry of the list."""
    head, comma, _ = value.rpartition(",")
    return [f"{key}={head}{comma}{name}" for name in names]


def _runs(before: list[str], start: str) -> list[str]:
    """Run folders: below runs_dir, as part of a path, and as paths."""
    runs_dir = next((w[9:] for w in reversed(before) if w.startswith("runs_dir=")), "runs")
    below = [path for path in _paths(runs_dir, start) if path.partition("/")[0] not in NO_RUNS]
    if start.count("/") >= 2:
        below = [path.rstrip("/") for path in below]
    return [*below, *_paths("", start)] if "/" in start or not below else below


def _paths(folder: str, start: str) -> list[str]:
    """The entries of a folder that continue the path ``start``, folders with a slash."""
    parent = start.rpartition("/")[0] + "/" if "/" in start else ""
    place = Path(folder, parent).expanduser() if folder else Path(parent or ".").expanduser()
    try:
        entries = [entry for entry in place.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
    return [f"{parent}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries]
