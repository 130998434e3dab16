"""The layout of the code: packages, imports and the length of files."""

import ast
import re
import subprocess
from graphlib import TopologicalSorter

import grimp
import pytest
from program import ROOT

LONGEST = 600
"""Lines of a file."""
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


def test_no_function_is_long() -> None:
    found = {}
    for name in files("pe_lab/*.py", "tasks/*.py", "docs/*.py", "benchmarks/*.py"):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
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
    public = {"__init__.py", "__main__.py", "nn.py"}
    assert {top for top in tops if top.endswith(".py")} == public
    assert (
        10 <= len([top for top in tops if not top.endswith(".py")]) <= 17
    )  # inspection/ joins explain/


def test_private_hydra_is_imported_in_one_file() -> None:
    importing = [
        name
        for name in files("pe_lab/*.py", "tasks/*.py", "benchmarks/*.py", "docs/*.py")
        if re.search(r"^\s*(from|import) hydra\._", (ROOT / name).read_text(), re.MULTILINE)
    ]
    assert importing == ["pe_lab/config/hydra_internals.py"]


def test_no_file_imports_itself_through_others() -> None:
    graph = grimp.build_graph("pe_lab")
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    # Raises CycleError, which names the files.
    TopologicalSorter(imports).prepare()
