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

import keyword
import shlex
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from pe_lab.config.choices import choices
from pe_lab.core.console import console
from pe_lab.core.errors import UsageError, writing
from pe_lab.core.options import Options, parse
from pe_lab.core.suggest import did_you_mean

KINDS = {"encoding": "pe", "task": "task", "model": "model"}
"""What can be made, and its group of yamls."""


class NewOptions(Options):
    """The keys of ``pe-lab new``, after the kind and the name."""

    command = "new"

    to: str | None = None


def show(words: Sequence[str]) -> None:
    """Write the files and print what to do with them.

    Raises:
        UsageError: a wrong kind, name or option, or a file that exists.
        RunError: a file cannot be written.
    """
    bare = [word for word in words if "=" not in word]
    options = parse(NewOptions, [word for word in words if "=" in word])
    if not bare or bare[0] not in KINDS:
        shown = f"new {bare[0]}: " if bare else "new: "
        raise UsageError(
            f"{shown}{did_you_mean(bare[0] if bare else '', KINDS)}, and a name: "
            "pe-lab new encoding decay"
        )
    if len(bare) != 2:
        raise UsageError(
            f"new {shlex.join(bare)}: give one name, pe-lab new {bare[0]} decay [to=FOLDER]"
        )
    kind, name = bare
    check_name(kind, name)
    folder = Path(name if options.to is None else options.to)
    written = write(kind, name, folder)
    group, out = KINDS[kind], console()
    for path in written:
        out.print(f"written  {path}", soft_wrap=True)
    also = ["pe=none"] if kind == "model" else [] if kind == "task" else ["task=flipflop"]
    config_dir = ["--config-dir", str(folder)]
    for label, line in (
        ("check it:", ["pe-lab", "check", *config_dir, f"{group}={name}"]),
        ("train it:", ["pe-lab", *config_dir, *also, f"{group}={name}"]),
    ):
        out.print(f"{label}  {shlex.join(line)}", soft_wrap=True)


def check_name(kind: str, name: str) -> None:
    """Refuse a name that a module cannot have, or that is in use.

    Raises:
        UsageError: as above.
    """
    group, remedy = KINDS[kind], "choose another name"
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise UsageError(
            f"new {kind} {name}: the name is also that of a Python file: give letters, digits and "
            "_, and begin with a letter, like my_name"
        )
    if name != name.lower() or name.startswith("_"):
        raise UsageError(
            f"new {kind} {name}: give a name in small letters, {name.lower().strip('_')}"
        )
    if name in choices(group):
        raise UsageError(f"new {kind} {name}: {group}={name} is there already; {remedy}")
    # Imported here: the other words of new need no suite.
    from pe_lab.results.suite import suites

    if kind == "encoding" and any(name in suite.controls for suite in suites()):
        raise UsageError(f"new {kind} {name}: {name} is a control of a suite; {remedy}")
    spec = find_spec(name)
    # A mere folder has no origin and hides nothing.
    if spec is not None and spec.origin is not None:
        raise UsageError(f"new {kind} {name}: {name} is a Python module already; {remedy}")


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of one kind and return their paths.

    Raises:
        UsageError: one of them exists, or the folder is not a folder.
        RunError: one cannot be written.
    """
    templates = files("pe_lab.cli").joinpath("templates")
    paths = {
        "py": folder / f"{name}.py",
        "yaml": folder / KINDS[kind] / f"{name}.yaml",
        "test.py": folder / f"test_{name}.py",
    }
    texts = {
        ending: templates.joinpath(
            f"{kind}{'_' if ending.startswith('test') else '.'}{ending}.txt"
        ).read_text("utf-8")
        for ending in paths
    }
    for path in paths.values():
        if path.exists() or path.is_symlink():
            raise UsageError(
                f"new {kind} {name}: {path} exists and is not overwritten: choose another name or "
                "to=FOLDER"
            )
        for parent in path.parents:
            if parent.exists() and not parent.is_dir():
                raise UsageError(f"to={folder}: {parent} is not a folder; choose another")
    cls = "".join(part.capitalize() for part in name.split("_"))
    for ending, path in paths.items():
        with writing(path, "another to=FOLDER"):
            path.parent.mkdir(parents=True, exist_ok=True)
            # "x": nothing that another process has written since is lost.
            with open(path, "x", encoding="utf-8") as file:
                file.write(texts[ending].replace("CLASS", cls).replace("NAME", name))
    return list(paths.values())
