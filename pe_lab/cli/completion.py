"""Tab completion: ``eval "$(pe-lab -sc install=bash)"``, for bash, zsh and fish.

The shell runs ``pe-lab -sc query=SHELL`` at each Tab, with the line so far in COMP_LINE. Only the
standard library and yaml are imported: the others take longer than a person waits.
"""

import ast
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from pe_lab.common.config_dir import conf
from pe_lab.common.errors import UsageError
from pe_lab.config.choices import CHOICES, choices
from pe_lab.core.metrics import IN_DOMAIN

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
GROUPS = (*CHOICES, "train", "tracker", "preset", "hydra/launcher", "hydra/sweeper")
VALUES = {
    "Format": ("table", "csv", "json", "markdown", "latex"),
    "Spread": ("rates", "both", "sd", "interval"),
    "Test": ("fisher", "mann_whitney"),
    "Flag": ("true", "false"),
    "bool": ("true", "false"),
}
"""The values of these types in the classes of options."""
KINDS = ("encoding", "task", "model")
"""What ``pe-lab new`` makes."""
PATHS = ("runs_dir", "out", "to", "task.file", "result", "file")
"""Keys whose values are files or folders."""
RUN_FILTERS = ("runs_dir", "where", "task", "pe", "positions", "model", "seed")
INHERITED = {"RunOptions": RUN_FILTERS, "FileOptions": ("file", *RUN_FILTERS)}
"""The keys that commands have from these classes."""
TRAIN = "train"
"""As in common.task, which imports numpy."""
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
    # Whatever fails, a prompt is no place for a message.
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
    last = before[-1] if before else ""
    if last in FLAG_VALUES:
        found: Iterable[str] = FLAG_VALUES[last]
    elif last in ("--config-dir", "-cd"):
        found = _paths("", current)
    elif before[:1] == ["list"]:
        found = CHOICES
    elif before[:1] == ["help"]:
        found = verbs
    elif before == ["new"]:
        found = [*KINDS, "to="]
    elif before and before[0] in verbs:
        found = _of_command(verbs[before[0]], before, current)
    else:
        found = _of_training(before, current)
        if not before:
            found += [*verbs, "help"]
    return [word for word in found if word.startswith(current)]


def _of_command(module: str, before: list[str], current: str) -> list[str]:
    """Keys and values of a command's options."""
    spec = find_spec(module)
    assert spec is not None
    source = Path(spec.origin or "")
    # Where a command's options fill a file of their own.
    apart = source.with_name(f"{source.stem}_options.py")
    source = apart if apart.is_file() else source
    fields = _fields(source, "Options")
    for base, inherited in INHERITED.items():
        if f"({base})" in source.read_text("utf-8"):
            fields = {**dict.fromkeys(inherited, ""), **fields}
    of_run = "checked_beside" in source.read_text("utf-8")
    key, equals, value = current.partition("=")
    if not equals:
        found = [f"{name}=" for name in fields] + ["--config-dir"]
        return found + (_of_training(before[1:], current) if of_run else [])
    if of_run and key in ("split", "splits"):
        drawn = [TRAIN] if key == "split" else []
        named = [*drawn, IN_DOMAIN, *(_config(before[1:])["task"].get("splits") or {})]
        return _listed(key, value, lambda _: named)
    if of_run and key not in fields:
        return _of_training(before[1:], current)
    if key == "run" or (key == "inspect" and "inspect" in fields):
        return _listed(key, value, lambda start: _runs(before, start))
    if key in CHOICES:
        return _listed(key, value, lambda _: choices(key))
    if key in PATHS:
        return [f"{key}={path}" for path in _paths("", value)]
    return [f"{key}={choice}" for choice in _values(fields.get(key, ""))]


def _of_training(before: list[str], current: str) -> list[str]:
    """Groups, keys and values of a run."""
    sign = current[: len(current) - len(current.lstrip("+~"))]
    key, equals, value = current[len(sign) :].partition("=")
    if current.startswith("-"):
        return list(FLAGS)
    config = _config(before)
    if not equals:
        parent = key.rpartition(".")[0]
        section: Any = config
        for part in filter(None, parent.split(".")):
            section = section[part]
        ends = {
            name: "." if isinstance(below, dict) and below else "="
            for name, below in section.items()
        }
        prefix = f"{sign}{parent}." if parent else sign
        found = [f"{prefix}{name}{end}" for name, end in ends.items()]
        return found + [f"{sign}{group}=" for group in GROUPS if not parent]
    if key in GROUPS:
        return _listed(sign + key, value, lambda _: choices(key))
    if key in PATHS:
        return [f"{sign}{key}={path}" for path in _paths("", value)]
    types = _fields(Path(__file__).parents[1] / "config" / "schema.py", "Config")
    return [f"{sign}{key}={choice}" for choice in _values(types.get(key.rpartition(".")[2], ""))]


def _config(before: list[str]) -> dict[str, Any]:
    """The keys of a run with these words, without interpolation and recipes."""
    config = _yaml(conf() / "config.yaml")
    chosen = {
        group: str(name)
        for entry in config.pop("defaults")
        if isinstance(entry, dict)
        for group, name in entry.items()
    }
    chosen |= {key: value for key, _, value in (word.partition("=") for word in before)}
    for group in ("task", "pe", "positions", "model", "train", "tracker", "train/optimizer"):
        section = config.setdefault(group.partition("/")[0], {})
        path = choices(group).get(chosen.get(group, ""))
        section |= _yaml(path) if path else {}
        section.pop("_target_", None)
    config.pop("hydra", None)
    return config


def _yaml(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text("utf-8")) or {}
    return loaded


def _fields(path: Path, base: str) -> dict[str, str]:
    """Name -> type as written, of the fields in a file's classes whose names end in ``base``."""
    tree = ast.parse(path.read_text("utf-8"))
    return {
        field.target.id: ast.unparse(field.annotation)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith(base)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _values(annotation: str) -> list[str]:
    """The values of a type, as far as they are listed."""
    listed = list(VALUES.get(annotation, ()))
    if literal := re.search(r"Literal\[(.*?)\]", annotation):
        listed += re.findall(r"'([^']*)'", literal[1])
    return listed


def _listed(key: str, value: str, of: Any) -> list[str]:
    """``key=a,b,`` with each candidate for the last entry of the list."""
    head, comma, last = value.rpartition(",")
    return [f"{key}={head}{comma}{choice}" for choice in of(last)]


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
