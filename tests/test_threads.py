"""``threads: auto``: as many CPU threads as a run's size is worth."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from program import Here, assert_has, the_run, tiny

from pe_lab.experiment import environment


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them."""
    monkeypatch.setattr("joblib.cpu_count", lambda **_: 4)


def recorded(folder: Path) -> list[int]:
    return [start["threads"] for start in json.loads((folder / "environment.json").read_text())]


# Weights of the tiny run, about: words 5 * 16 twice, attention and feed-forward 12 * 16^2; 8 * 16
# tokens.
TINY_FLOP = 6 * (2 * 5 * 16 + 12 * 16**2) * 8 * 16


@pytest.mark.parametrize(("share", "expected"), [(2, 1), (0.4, 2), (1e-9, 4)])
def test_one_for_so_much_work_and_never_more_than_there_are_cores(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None, share: float,
    expected: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(environment, "FLOP_PER_THREAD", TINY_FLOP * share)
    ended = here(*tiny("threads=auto", "train.steps=2"))
    assert ended.status == 0, ended.err
    assert recorded(the_run(tmp_path / "runs")) == [expected]


def test_a_run_that_goes_on_keeps_its_number(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    monkeypatch.setattr(environment, "FLOP_PER_THREAD", 0.3 * TINY_FLOP)
    ended = here(*tiny("threads=auto", "train.steps=2"))
    assert ended.status == 0, ended.err
    folder = the_run(tmp_path / "runs")
    (folder / "summary.json").unlink()
    monkeypatch.setattr(environment, "FLOP_PER_THREAD", TINY_FLOP)
    again = here(*tiny("threads=auto", "train.steps=2"))
    assert (recorded(folder), "resumed with" in again.out) == ([3, 3], False)
    monkeypatch.setattr("joblib.cpu_count", lambda **_: 2)
    (folder / "summary.json").unlink()
    other = here(*tiny("threads=auto", "train.steps=2"))
    assert recorded(folder) == [3, 3, 2]
    assert_has(other.out, "resumed with threads=2 (3 before)")


def test_launchers_count_one_for_auto(monkeypatch: pytest.MonkeyPatch, cores: None) -> None:
    for value, jobs, cpus in ((1, 4, 1), (2, 2, 2), ("auto", 4, 1), ("wrong", 4, 1)):
        cfg = OmegaConf.create({"t": value, "jobs": "${cores:${t}}", "cpus": "${cpus:${t}}"})
        assert (cfg.jobs, cfg.cpus) == (jobs, cpus)
