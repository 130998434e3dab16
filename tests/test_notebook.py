"""docs/first_steps.ipynb, run from beginning to end."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from program import ROOT

from pe_lab.kernels.cpu.build import cache_folder

PATH = ROOT / "docs" / "first_steps.ipynb"
PROGRESS = """
from pe_lab.common import console

console.LINE_INTERVAL_S = 0
run("task=flipflop", "pe=none", **{**small, "steps": 3})
"""


def notebook() -> nbformat.NotebookNode:
    return nbformat.read(PATH, as_version=4)


def test_it_is_kept_without_outputs() -> None:
    """They would be those of some earlier version."""
    nbformat.validate(notebook())
    for cell in notebook().cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.extended
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "pe-lab"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pe_lab "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Not another compilation of the CPU kernels.
    monkeypatch.setenv("PE_LAB_CACHE", str(cache_folder()))
    # Files of the notebook's kernel that belong to a user.
    for key in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(key, str(tmp_path / key))
        (tmp_path / key).mkdir()
    made = notebook()
    made.cells.append(nbformat.v4.new_code_cell(PROGRESS))
    NotebookClient(
        made, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    text = [
        "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "")
            for output in cell.get("outputs", [])
        )
        for cell in made.cells
    ]
    assert "runs/flipflop/cope/seed0" in text[3]
    assert "in_domain" in text[4]
    assert "unknown encoding pe=coop: did you mean cope?" in text[12]
    assert "written  fading/fading.py" in text[14]
    assert " fail " not in text[15]
    assert "long_x2" in text[16]
    # Progress is lines of text: a bar needs a terminal.
    assert "step 1/3" in text[-1]
    assert "step 3/3" in text[-1]
    assert "\x1b" not in text[-1]
