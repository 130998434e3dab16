"""``pe-lab new``: what it writes runs as it stands."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from program import ROOT, Here, assert_has, assert_refused, summary, the_run, tiny


@pytest.fixture(autouse=True)
def path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of --config-dir are importable for the rest of a process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("fading", "lookback", "averages"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()


def test_an_encoding_is_checked_and_trained(here: Here, tmp_path: Path) -> None:
    made = here("new", "encoding", "fading")
    assert (made.status, made.err) == (0, "")
    files = ["fading/fading.py", "fading/pe/fading.yaml", "fading/test_fading.py"]
    for name in files:
        assert f"written  {name}" in made.out
        assert not {"NAME", "CLASS"} & set((tmp_path / name).read_text().split())
    checked = here("check", "--config-dir", "fading", "pe=fading").ok()
    assert "tried rate=" in checked.out
    here("--config-dir", "fading", *tiny("pe=fading", "train.steps=3", "pe.rate=0.2")).ok()
    assert summary(the_run(tmp_path / "runs"))["metrics"]["params/encoding"] == 2
    assert here("--config-dir", "fading", *tiny("pe=fading", "pe.rate=-1")).status == 2


@pytest.mark.parametrize(
    ("kind", "name", "also"),
    [("task", "lookback", []), ("model", "averages", ["model.n_layers=1", "model.d_model=8"])],
)
def test_a_task_and_a_model_are_checked_and_trained(
    here: Here, tmp_path: Path, kind: str, name: str, also: list[str]
) -> None:
    assert here("new", kind, name, "to=mine").status == 0
    here("check", "--config-dir", "mine", f"{kind}={name}").ok()
    rest = [word for word in tiny("train.steps=3") if not word.startswith(f"{kind}")]
    here("--config-dir", "mine", *rest, f"{kind}={name}", *also).ok()
    names = summary(the_run(tmp_path / "runs"))["names"]
    assert names[kind] == name


def test_a_new_task_reads_the_files_that_data_writes(here: Here) -> None:
    """data ends with the key to read the file with, so the yaml must have that key."""
    here("new", "task", "lookback", "to=mine")
    few = ["train.steps=1", "eval.sequences=4", "eval.quick_sequences=4"]
    rest = [word for word in tiny(*few) if not word.startswith("task")]
    words = ["--config-dir", "mine", "task=lookback"]
    written = here("data", *words, "n=4", "to=few.jsonl")
    (key,) = re.findall(r"task\.files=\{.*\}", written.out)
    here(*words, *rest, key).ok()


@pytest.mark.extended
def test_the_tests_that_it_writes_pass(here: Here, tmp_path: Path) -> None:
    for kind, name in (("encoding", "fading"), ("task", "lookback"), ("model", "averages")):
        here("new", kind, name, "to=mine")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert "6 passed" in ended.stdout


@pytest.mark.parametrize("file", ["fading.py", "pe/fading.yaml", "test_fading.py"])
def test_nothing_is_written_over(here: Here, tmp_path: Path, file: str) -> None:
    (tmp_path / "mine" / "pe").mkdir(parents=True)
    (tmp_path / "mine" / file).write_text("mine")
    assert_refused(
        here("new", "encoding", "fading", "to=mine"), f"mine/{file} exists and is not overwritten"
    )
    assert [p.name for p in (tmp_path / "mine").rglob("*") if p.is_file()] == [Path(file).name]
    assert (tmp_path / "mine" / file).read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["encoding", "rope"], "pe=rope is there already"),
        (["task", "flipflop"], "task=flipflop is there already"),
        (["model", "gru"], "model=gru is there already"),
        (["encoding", "json"], "json is a Python module already"),
        (["encoding", "my-own"], "letters, digits and _"),
        (["encoding", "class"], "letters, digits and _"),
        (["encoding", "../up"], "letters, digits and _"),
        (["encoding", "Mine"], "give a name in small letters, mine"),
        (["encodings", "mine"], "new encodings: did you mean encoding?"),
        (["encoding"], "give one name"),
        ([], "choose from encoding, model, task"),
        (["encoding", "mine", "too=x"], "did you mean to?"),
        (["encoding", "newest", "to=file"], "file is not a folder"),
    ],
)
def test_refused_in_one_sentence(here: Here, tmp_path: Path, words: list[str], part: str) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(here("new", *words), part)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written(here: Here, tmp_path: Path) -> None:
    ended = here("new", "encoding", "newest", "to=/proc/none")
    assert ended.status == 1
    (line,) = ended.err.splitlines()
    assert_has(line, "cannot be written", "choose another to=FOLDER")


@pytest.mark.extended
def test_the_page_on_extending_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    shell, python = (
        re.search(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for kind in ("sh", "python")
    )
    sizes = {"eval.sequences": 20, "eval.quick_sequences": 20}
    small = ["train.steps=2", *(f"{key}={value}" for key, value in sizes.items()), "tracker=none"]
    # Other steps than the shell's: other runs.
    code = python[1].replace("steps=100", f"steps=3, **{sizes}")
    assert code.count("steps=3") == 2
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines = [line.partition("  #")[0] for line in shell[1].splitlines()]
    assert len(lines) == 4
    commands = [[*shlex.split(line)[1:], *(small if "task=" in line else [])] for line in lines]
    for words in [["-m", "pe_lab", *words] for words in commands] + [["-c", code]]:
        ended = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"
    assert len(list((tmp_path / "runs").glob("*/*/seed*/summary.json"))) == 10 + 4


def test_a_file_of_the_folder_hides_no_module(here: Here, tmp_path: Path) -> None:
    (tmp_path / "mine" / "pe").mkdir(parents=True)
    (tmp_path / "mine" / "colorsys.py").write_text("raise SystemExit('hidden')")
    (tmp_path / "mine" / "pe" / "odd.yaml").write_text("_target_: colorsys.Odd\n")
    assert_refused(here("--config-dir", "mine", *tiny("pe=odd")), "colorsys has no Odd")
