"""The command line as a person uses it."""

import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from program import ROOT, Here, assert_has, rows, state, succeeded, summary, the_run, tiny

from pe_lab.cli.main import COMMANDS
from pe_lab.cli.run_argument import RunArgument
from pe_lab.core.options import Options
from pe_lab.results.selection import FileOptions, RunOptions

ESCAPE = "\x1b"


def test_show_has_every_encoding_and_task(here: Here) -> None:
    ended = succeeded(here("show", "pe", "task"))
    listed = dict(re.split(" +", line, maxsplit=1) for line in ended.out.splitlines()[1:])
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


def table(out: str, title: str) -> dict[str, dict[str, str]]:
    """The rows of the table below this title, by their first cells."""
    lines = out[out.index(title) :].splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    cells = [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines[:end]]
    header, *body = [row for row in cells if row]
    return {row[0]: dict(zip(header, row, strict=True)) for row in body if row[0]}


@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_splits_are_replaced_as_a_whole(here: Here, tmp_path: Path, sweep: list[str]) -> None:
    word = "task.splits={foo:{length: 8}}"
    assert here(*sweep, *tiny(word)).status == 0
    folder = the_run(tmp_path / "runs")
    assert list(summary(folder)["splits"]) == ["in_domain", "foo"]
    overrides = json.loads((folder / "summary.json").read_text())["overrides"]
    assert [w.replace(" ", "") for w in overrides if "splits" in w] == [word.replace(" ", "")]
    assert here(*tiny("task.splits={}", "runs_dir=none")).status == 0
    assert list(summary(the_run(tmp_path / "none"))["splits"]) == ["in_domain"]


def test_help_anywhere_on_the_line(here: Here) -> None:
    text = here("--help").out
    assert_has(text, "pe-lab task=flipflop pe=cope", "pe-lab -m ", "pe-lab results", "pe-lab show")
    for words in ([], ["help"], ["pe=none", "-h"], ["-h", "pe=none"]):
        assert here(*words).out == text
    for words in (["help", "resluts"], ["resluts", "--help"]):
        ended = here(*words)
        assert (ended.status, ended.out) == (2, "")
        assert "did you mean results?" in ended.err


def test_help_fits_a_screen(here: Here) -> None:
    for words in ([], *([name] for name in COMMANDS)):
        assert max(map(len, here(*words, "--help").out.splitlines())) <= 100, words
    assert len(here("--help").out.splitlines()) <= 60


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


def keys_of(verb: str) -> list[str]:
    """The keys of a command's options."""
    import_module(f"pe_lab.cli.{verb}")
    bases = (Options, RunOptions, FileOptions, RunArgument)
    models = [model for base in bases for model in base.__subclasses__()]
    (model,) = (model for model in models if getattr(model, "command", None) == verb)
    return [key for key in model.model_fields if key not in RunOptions.model_fields]


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_help_of_each_command_has_its_keys(here: Here, verb: str) -> None:
    text = here(verb, "--help").out
    assert text.startswith(f"pe-lab {verb}: ")
    assert text == here("help", verb).out == here(verb, "-h", "runs_dir=none").out
    for key in keys_of(verb):
        assert re.search(rf"\b{key}=", text), key


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
    before = (swept[alone.name] / "summary.json").stat().st_mtime_ns
    assert "finished already" in here(*tiny(*words, "pe=rope", "seed=1")).out
    assert (swept[alone.name] / "summary.json").stat().st_mtime_ns == before


# Runs its arguments on a terminal and copies what they write there.
TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


@pytest.mark.extended
def test_on_a_terminal(tmp_path: Path) -> None:
    # So many steps that a fast machine takes longer than two pictures of the progress.
    words = tiny("train.steps=300", "train.log_every=5")
    ended = subprocess.run(
        [sys.executable, "-c", TERMINAL, sys.executable, "-m", "pe_lab", *words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    out = ended.stdout.decode()
    assert ended.returncode == 0, out
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", out)
    assert len(re.findall(r" \d+/300 loss \d\.\d{4}  \d+\.\d steps/s \d:\d\d:\d\d", plain)) >= 2
    # The bar is erased, and what follows can be read.
    last = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", out[out.rindex("\x1b[2K") :])
    assert "/300" not in last
    found = table(last, "flipflop, none, seed 0: error in %")
    result = summary(the_run(tmp_path / "runs"))["metrics"]
    assert list(found) == ["in_domain", "sparse", "dense", "long_x2", "long_x4", "sparse_x4",
                           "dense_x4"]  # fmt: skip
    for split, row in found.items():
        where = "in_domain" if split == "in_domain" else f"ood/{split}"
        assert float(row["error"]) == pytest.approx(100 * result[f"{where}/error"], abs=0.051)
        assert float(row["guessing"]) == pytest.approx(100 * result[f"{where}/guess"], abs=0.051)
        assert int(row["scored"]) == result[f"{where}/n"]
    assert f"written to  runs/flipflop/none/{the_run(tmp_path / 'runs').name}" in last
    assert ESCAPE in out
    for name in ("log.txt", "metrics.jsonl", "status.json"):
        path = the_run(tmp_path / "runs") / name
        assert not path.exists() or ESCAPE not in path.read_text()
