"""The command line as a person uses it."""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from program import (
    ROOT,
    Here,
    assert_has,
    command,
    rows,
    state,
    succeeded,
    summary,
    the_run,
    tiny,
)


def test_show_has_every_encoding_and_task(here: Here) -> None:
    ended = succeeded(here("show", "pe", "task"))
    listed = dict(re.split(" +", line, maxsplit=1) for line in ended.out.splitlines())
    expected = {}
    for group in ("pe", "task"):
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            module, _, name = yaml.safe_load(path.read_text())["_target_"].rpartition(".")
            docstring = inspect.getdoc(getattr(import_module(module), name))
            expected[f"{group}={path.stem}"] = docstring.splitlines()[0]
    assert {key: line.strip() for key, line in listed.items()} == expected
    assert "experiment=paper/flipflop" in here("show").out


def test_cfg_shows_the_job_and_runs_nothing(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here(*tiny("pe=rope", "seed=3"), "--cfg", "job"))
    shown = yaml.safe_load(ended.out)
    assert (shown["seed"], shown["pe"]["_target_"]) == (3, "pe_lab.pe.rope.RoPE")
    assert shown["train"]["steps"] == 20
    assert not (tmp_path / "runs").exists()


def test_keys_are_completed(tmp_path: Path) -> None:
    typed = {"COMP_LINE": "pe-lab train.ste", "COMP_CWORD": "1"}
    ended = command("--shell-completion", "query=bash", cwd=tmp_path, env=typed, status=0)
    assert ended.stdout.split() == ["train.steps="]


def test_help_anywhere_on_the_line(here: Here) -> None:
    text = here("--help").out
    first = text.partition("to begin with:\n")[2].partition("\n\n")[0].splitlines()
    assert len(first) == 6
    assert all(line.startswith("  pe-lab ") for line in first)
    assert_has(text, "pe-lab task=flipflop pe=cope", "pe-lab -m ", "pe-lab results", "pe-lab show")
    for words in ([], ["help"], ["pe=none", "-h"], ["-h", "pe=none"]):
        assert here(*words).out == text
    for words in (["help", "resluts"], ["resluts", "--help"]):
        ended = here(*words)
        assert (ended.status, ended.out) == (2, "")
        assert "did you mean results?" in ended.err


@pytest.mark.parametrize(
    "words", [["show"], pytest.param(tiny("train.steps=60"), marks=pytest.mark.extended)]
)
def test_closed_output_is_no_failure(tmp_path: Path, words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-m", "pe_lab", *words]
    ended = subprocess.run(
        program, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")
    if words != ["show"]:
        assert state(the_run(tmp_path / "runs"))["state"] == "finished"


def test_a_job_of_a_sweep_is_the_job_alone(here: Here, tmp_path: Path) -> None:
    words = ("model.dropout=0.1", "train.steps=12")
    # The first job must leave nothing behind for the second: seeds, threads, deterministic mode.
    assert here("-m", *tiny(*words, "pe=learned,rope", "seed=0,1")).status == 0
    swept = {path.name: path for path in (tmp_path / "runs").glob("flipflop/*/seed*")}
    assert len(swept) == 4
    assert here(*tiny(*words, "pe=rope", "seed=1", "runs_dir=alone")).status == 0
    alone = the_run(tmp_path / "alone")
    assert rows(alone) == rows(swept[alone.name])
    assert summary(alone) == summary(swept[alone.name])
