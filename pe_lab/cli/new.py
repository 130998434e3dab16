"""``pe-lab new``: writes the files of an encoding, a task or a model of your own.

    pe-lab new encoding decay                 decay/decay.py, decay/pe/decay.yaml and a test
    pe-lab new task lookback to=mine          mine/lookback.py, mine/task/lookback.yaml, ..
    pe-lab new model averages to=mine         mine/averages.py, mine/model/averages.yaml, ..

The files run as they are. They hold a small example to replace, and comments on what else a class
may define. Then:

    pe-lab check --config-dir decay pe=decay
    pe-lab --config-dir decay task=flipflop pe=decay

Existing files are never overwritten.
"""

import re
import shlex
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from pe_lab.core.config_dir import choices
from pe_lab.core.console import console
from pe_lab.core.errors import UsageError, check_known
from pe_lab.core.files import write_output
from pe_lab.core.options import Line

KINDS = {"encoding": "pe", "task": "task", "model": "model"}
"""What can be made, and its group of yamls."""


def show(_: Line, *names: str, to: Path | None = None) -> None:
    """Write the files and print what to do with them.

    Raises:
        UsageError: a wrong kind, name or option, or a file that exists.
        RunError: a file cannot be written.
    """
    if len(names) != 2:
        raise UsageError("new needs a kind and a name: pe-lab new encoding decay [to=FOLDER]")
    kind, name = names
    check_known("new {}: unknown kind", [kind], KINDS)
    check_name(kind, name)
    folder = to or Path(name)
    for path in write_files(kind, name, folder):
        console().print(f"written  {path}", soft_wrap=True)
    also = {"encoding": ["task=flipflop"], "task": [], "model": ["pe=none"]}[kind]
    words = ["--config-dir", str(folder), f"{KINDS[kind]}={name}"]
    console().print(f"check it:  {shlex.join(['pe-lab', 'check', *words])}", soft_wrap=True)
    console().print(f"train it:  {shlex.join(['pe-lab', *words, *also])}", soft_wrap=True)


def check_name(kind: str, name: str) -> None:
    """Refuse a name that a module cannot have, or that is in use."""
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise UsageError(f"new {kind} {name}: give small letters, digits and _, like my_name")
    if name in choices(KINDS[kind]) or iskeyword(name) or find_spec(name) is not None:
        raise UsageError(f"new {kind} {name}: the name is in use; choose another")


def write_files(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of one kind from ``templates/`` and return their paths."""
    templates = files("pe_lab.cli").joinpath("templates")
    paths = {
        f"{kind}.py": folder / f"{name}.py",
        f"{kind}.yaml": folder / KINDS[kind] / f"{name}.yaml",
        f"{kind}_test.py": folder / f"test_{name}.py",
    }
    class_name = "".join(part.capitalize() for part in name.split("_"))
    for path in paths.values():
        if path.exists():
            raise UsageError(f"{path} exists and is not overwritten: give another to=FOLDER")
    for template, path in paths.items():
        text = templates.joinpath(f"{template}.txt").read_text("utf-8")
        write_output(path, text.replace("CLASS", class_name).replace("NAME", name).encode())
    return list(paths.values())
