"""Tab completion."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pe_lab.cli.completion import candidates
from pe_lab.cli.main import VERBS
from pe_lab.config.choices import CHOICES, choices

PROGRAM = Path(sys.executable).with_name("pe-lab")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/flipflop/cope/seed0-01234567").mkdir(parents=True)
    (tmp_path / "runs/report").mkdir()
    (tmp_path / "book.txt").touch()
    (tmp_path / "mine/pe").mkdir(parents=True)
    (tmp_path / "mine/pe/mine.yaml").touch()


def completed(line: str) -> set[str]:
    *before, current = line.split(" ")
    return set(candidates(before, current, VERBS))


@pytest.mark.parametrize(
    ("line", "expected"),
    {
        "resu": {"results"},
        "tr": {"train.", "train=", "train/optimizer=", "tracker.", "tracker="},
        "train.ste": {"train.steps="},
        "train.opt": {"train.optimizer="},
        "tracker.wandb.mo": {"tracker.wandb.mode="},
        "task=text task.fi": {"task.file=", "task.files="},
        "pe=rope pe.ba": {"pe.base="},
        "pe=re": {"pe=recurrent", "pe=relative", "pe=repo", "pe=rerope"},
        "-m pe=cope,ro": {"pe=cope,rope", "pe=cope,rope_2d"},
        "check pe=f": {"pe=fire", "pe=floater", "pe=fope", "pe=fox"},
        "data task=copy split=": {
            f"split={name}" for name in ("train", "in_domain", "long_x2", "long_x4")
        },
        "data spl": {"split="},
        "data task=copy task.max": {"task.max_letters="},
        "data pe=fo": {"pe=fope", "pe=fox"},
        "show splits=sp": {"splits=sparse", "splits=sparse_x4"},
        "show splits=sparse,dense_": {"splits=sparse,dense_x4"},
        "show task=copy_unique splits=l": {"splits=long_x2", "splits=long_x3"},
        "new ": {"encoding", "task", "model", "to="},
        "experiment=small/t": {"experiment=small/text"},
        "device=": {"device=auto", "device=cpu", "device=cuda"},
        "train.schedule=l": {"train.schedule=linear"},
        "train.fast=": {"train.fast=true", "train.fast=false"},
        "task.file=b": {"task.file=book.txt"},
        "--conf": {"--config-dir"},
        "--cfg j": {"job"},
        "list po": {"positions"},
        "help ins": {"inspect"},
        "results form": {"format="},
        "results runs_dir=r": {"runs_dir=runs/"},
        "results file=b": {"file=book.txt"},
        "compare fi": {"file="},
        "results format=m": {"format=markdown"},
        "results evaluations=": {"evaluations=true", "evaluations=false"},
        "results spread=r": {"spread=rates"},
        # As the run is composed: with its recipe and the user's folder.
        "experiment=paper/copy_repeat task.splits.": {
            "task.splits.long_x2.",
            "task.splits.long_x3.",
        },
        "--config-dir mine pe=mi": {"pe=mine"},
        "-m task=copy,flipflop train.ste": {"train.steps="},
        "inspect run=": {"run=flipflop/"},
        "inspect run=flipflop/cope/": {"run=flipflop/cope/seed0-01234567"},
        "eval run=runs/flipflop/": {"run=runs/flipflop/cope/"},
        "eval pe=pi,ya": {"pe=pi,yarn"},
        "report inspect=flip": {"inspect=flipflop/"},
    }.items(),
)
def test_candidates(line: str, expected: set[str]) -> None:
    assert completed(line) == expected


def test_every_command_and_its_keys() -> None:
    assert set(VERBS) <= completed("")
    assert {f"{group}=" for group in CHOICES} <= completed("")
    assert completed("experiment=") == {f"experiment={name}" for name in choices("experiment")}
    for verb, name in VERBS.items():
        classes = {key.lower(): value for key, value in vars(import_module(name)).items()}
        model = classes.get(f"{verb}options")
        if model is not None:
            assert {f"{key}=" for key in model.model_fields} <= completed(f"{verb} ")


@pytest.mark.parametrize("line", ["", "pe-lab", "pe-lab x.y.z", "pe-lab 'a", "pe-lab help =", "="])
def test_never_a_message_in_the_prompt(line: str) -> None:
    words = [sys.executable, "-m", "pe_lab", "-sc", "query=bash"]
    ended = subprocess.run(words, env={**os.environ, "COMP_LINE": line}, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_in_bash() -> None:
    """Bash splits words at = and :, and replaces only what follows."""
    script = (
        f'PATH={PROGRAM.parent}:$PATH; eval "$(pe-lab -sc install=bash)"\n'
        "for line in 'pe-lab task=flipflop pe=re' 'pe-lab train.ste'; do\n"
        "  COMP_LINE=$line COMP_POINT=${#line}\n"
        "  _pe_lab_completion pe-lab; echo ${COMPREPLY[@]}\n"
        "done\n"
    )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["recurrent relative repo rerope", "train.steps="], (
        ended.stderr
    )
