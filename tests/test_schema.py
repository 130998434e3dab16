"""What a command line becomes: composed once, and a hint where a word is wrong."""

from typing import Any

import pytest
from omegaconf import OmegaConf
from program import Here, assert_refused, tiny

import pe_lab.train.plan
from pe_lab.config import compose
from pe_lab.config.compose import CommandLine
from pe_lab.config.hydra_internals import Hydra
from pe_lab.sweeps.launchers import register_choices

LINES = {
    "files and values": ["task=flipflop,brackets", "pe=cope,rope", "seed=0,1", "train.lr=1e-3"],
    "a mapping, a list, a launcher": [
        "pe=combined", "pe.parts=[cope,rope]", "seed=0,1", "task.splits={foo:{length: 8}}",
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=3",
    ],
}  # fmt: skip


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_jobs_composed_together_are_those_composed_alone(
    monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    def plain() -> list[Any]:
        found: list[Any] = []
        for cfg in compose.compose(CommandLine.parse(["-m", *line])):
            found.append(OmegaConf.to_container(cfg, resolve=False))
            # Made of the words, for those who name folders by it.
            del found[-1]["hydra"]["job"]["override_dirname"]
        return found

    register_choices()
    together = plain()
    # Every override counts as a choice of a file: each job is composed by itself.
    monkeypatch.setattr(compose, "_chooses_a_file", lambda hydra, override: True)
    assert together == plain()
    assert len(together) in (2, 8)


def test_a_single_run_is_composed_planned_and_built_once(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*words: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*words, **options)

        monkeypatch.setattr(owner, name, call)

    counted(Hydra, "compose_config")
    counted(pe_lab.train.plan, "plan")
    counted(pe_lab.train.plan.Plan, "model")
    assert here(*tiny("pe=rope", "seed=3", "train.steps=3")).status == 0
    assert calls == ["compose_config", "plan", "model"]


HINTS = {
    "steps=100": "did you mean train.steps?",
    "trian.stepz=5": "did you mean train.steps?",
    "task=copy task.length=8": "did you mean task.min_letters or task.max_letters?",
    "pe=RoPE": "did you mean rope?",
    "rope": "did you mean pe=rope?",
    "train.schedule=cosin": "did you mean cosine? (choices: constant, cosine, linear)",
    "encoding=cope": "did you mean pe?",
    "-m hydra/launcher=slrum": "did you mean slurm?",
}


@pytest.mark.parametrize("line", HINTS)
def test_what_was_probably_meant(here: Here, line: str) -> None:
    assert_refused(here(*line.split()), HINTS[line])


@pytest.mark.parametrize("line", ["steps=1", "heads=1", "xyz=1", "resolution=1"])
def test_no_hint_leads_astray(here: Here, line: str) -> None:
    assert "did you mean threads" not in here(line).err


def test_a_run_that_is_found_finished_is_not_said_to_be_written(here: Here) -> None:
    words = tiny("train.steps=1", "train.warmup=0")
    first, again, forced = here(*words), here(*words), here(*words, "force=true")
    assert "written to  runs/" in first.out
    assert "found in    runs/" in again.out
    assert "written to" not in again.out
    assert "written to  runs/" in forced.out
