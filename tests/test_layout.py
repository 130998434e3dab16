"""The layout of the code: packages, imports and the length of files."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from program import ROOT, start, tiny

LONGEST = 600
"""Lines of a file."""
BUDGETS = {
    "check": 556, "cli": 1229, "config": 349, "core": 696, "evaluate": 302, "experiment": 670,
    "explain": 988, "hf": 303, "kernels": 361, "models": 1569, "nn.py": 138, "pe": 2315,
    "report": 441, "results": 1024, "store": 301, "suite": 989, "sweeps": 467, "train": 608,
}  # fmt: skip
"""Statements of a room of pe_lab, docstrings counted. A number only goes down: what needs more
pays with something that goes."""
OTHERS = {"tests": 11_500, "tasks": 1_915, "benchmarks": 330, "docs": 450}
LONGEST_FUNCTION = 50
"""Lines of a function without its docstring."""


def files(*patterns: str) -> list[str]:
    """The tracked files, and the new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\n") if name and (ROOT / name).exists()]


if not (ROOT / ".git").exists():
    pytest.skip("not a git checkout", allow_module_level=True)


def test_no_file_is_long() -> None:
    names = [
        name
        for name in files("pe_lab", "tasks", "conf", "docs/*.py", "benchmarks/*.py")
        if not name.endswith((".txt", ".html", ".parquet")) and "published" not in name
    ]
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in names}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


@cache
def nodes(name: str) -> list[ast.AST]:
    """The syntax tree of a file, flat."""
    return list(ast.walk(ast.parse((ROOT / name).read_text())))


def count_statements(folder: str) -> int:
    """The statements of a file, or of all Python files below a folder."""
    names = [name for name in files(folder) if name.endswith(".py")]
    return sum(isinstance(node, ast.stmt) for name in names for node in nodes(name))


def test_each_room_keeps_its_budget() -> None:
    rooms = {name.split("/")[1] for name in files("pe_lab") if name.count("/") > 1}
    assert rooms == {room for room in BUDGETS if room != "nn.py"}
    limits = {f"pe_lab/{room}": most for room, most in BUDGETS.items()} | OTHERS
    counts = {folder: count_statements(folder) for folder in limits}
    assert {folder: n for folder, n in counts.items() if n > limits[folder]} == {}


def test_no_function_is_long() -> None:
    found = {}
    for name in files("pe_lab/*.py", "tasks/*.py", "docs/*.py", "benchmarks/*.py"):
        for node in nodes(name):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                first = node.body[0]
                text = first if ast.get_docstring(node) is not None else None
                said = (text.end_lineno or 0) - text.lineno + 1 if text else 0
                lines = node.end_lineno - node.lineno + 1 - said
                if lines > LONGEST_FUNCTION:
                    found[f"{name.removeprefix('pe_lab/')}: {node.name}"] = lines
    assert found == {}


def test_packages_and_nothing_loose() -> None:
    tops = {name.split("/")[1] for name in files("pe_lab/*")}
    # Users import pe_lab.nn as they import torch.nn.
    assert {top for top in tops if top.endswith(".py")} == {"__init__.py", "__main__.py", "nn.py"}
    assert 10 <= len([top for top in tops if not top.endswith(".py")]) <= 17


def test_no_private_name_of_hydra() -> None:
    private = re.compile(r"^\s*(?:from|import) (hydra\._.*)", re.MULTILINE)
    lines = [line for name in files("*.py") for line in private.findall((ROOT / name).read_text())
             if not name.startswith("tests/")]  # fmt: skip
    assert lines == []


WAY_IN = """
import json, sys
import pe_lab
from pe_lab.train.trainer import Trainer
from pe_lab.cli.main import main

root, calls, stack, step = pe_lab.__path__[0], {}, [], set()

def name_of(frame):
    code = frame.f_code
    file = code.co_filename.removeprefix(root + "/")
    # Not the bodies of modules and classes, nor functions within others.
    ours = code.co_filename != file and code.co_flags & 1 and "<" not in code.co_qualname
    return f"{file}:{code.co_qualname}" if ours else None

def called(frame, event, _):
    name = name_of(frame) if event == "call" else None
    if stack and name:
        step.add(name.partition(":")[0])
    elif name and name.partition("/")[0] in ("cli", "config", "experiment", "train"):
        above = frame.f_back
        while above and name_of(above) not in calls:
            above = above.f_back
        calls.setdefault(name, set())
        if above:
            calls[name_of(above)].add(name)
        while name.endswith("Trainer.train_step") and frame:
            stack.extend(filter(None, [name_of(frame)]))
            frame = frame.f_back

first = Trainer.train_step

def second_is_counted(trainer):
    step.clear()
    first(trainer)
    if trainer.step == 2:
        sys.setprofile(None)

Trainer.train_step = second_is_counted
sys.setprofile(called)
main(sys.argv[1:])
other = lambda name, one: name.partition(":")[0] != one.partition(":")[0]
leading = [name for name in calls if any(other(name, one) for one in calls[name])]
print(json.dumps({"all": list(calls), "leading": leading, "stack": stack, "step": sorted(step)}))
"""


def test_the_way_in_is_short(tmp_path: Path) -> None:
    """What a reader passes between ``entry()`` and the first training step of one run.

    Counted are functions of the rooms cli, config, experiment and train that run before the step:
    those that lead on to another file of these rooms. One that stays in its file is read with it,
    and what lies in core, store, pe, models and tasks is read when one wants to know how it is
    done. With every helper of those four rooms there are about 85, and 10 are on the stack of the
    step. The files are those that the second step runs, as the first loads the kernels.
    """
    words = ["task=flipflop", "pe=cope", "train.steps=2", "eval.sequences=1", "tracker=none"]
    program = [sys.executable, "-c", WAY_IN, *words, f"runs_dir={tmp_path}"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["leading"]) <= 15, found["leading"]
    assert len(found["stack"]) <= 10, found["stack"]
    assert len(found["all"]) <= 90, found["all"]
    assert len(found["step"]) <= 14, found["step"]


EXECUTED = """
import sys
import pe_lab
from pe_lab.cli.main import main

root, found = pe_lab.__path__[0] + "/", set()

def called(frame, event, _):
    code = frame.f_code
    # Not the bodies of modules and classes, nor functions within others.
    ours = code.co_filename.startswith(root) and code.co_flags & 1 and "<" not in code.co_qualname
    if event == "call" and ours:
        found.add(code.co_filename.removeprefix(root))

sys.setprofile(called)
main(sys.argv[1:])
sys.setprofile(None)
print(*sorted(found))
"""


def test_results_runs_few_files(tmp_path: Path) -> None:
    assert start(*tiny("train.steps=2"), cwd=tmp_path).status == 0
    program = [sys.executable, "-c", EXECUTED, "results", f"runs_dir={tmp_path / 'runs'}"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "flipflop: error in %" in done.stdout
    found = done.stdout.splitlines()[-1].split()
    assert len(found) <= 14, found


def test_no_file_imports_itself_through_others() -> None:
    graph = grimp.build_graph("pe_lab")
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    # Raises CycleError, which names the files.
    TopologicalSorter(imports).prepare()
