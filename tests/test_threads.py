"""``threads``: what is said where a run goes on with others, and how many jobs share the cores."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from program import Here, assert_has, succeeded, the_run, tiny


def test_a_run_that_goes_on_with_other_threads_says_so(here: Here, tmp_path: Path) -> None:
    succeeded(here(*tiny("train.steps=2")))
    (the_run(tmp_path / "runs") / "summary.json").unlink()
    other = succeeded(here(*tiny("train.steps=2", "threads=2")))
    assert_has(other.out, "resumed with threads=2 (1 before)")


def test_launchers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda **_: 4)
    for value, jobs, cpus in ((1, 4, 1), (2, 2, 2), ("wrong", 4, 1)):
        cfg = OmegaConf.create({"t": value, "jobs": "${cores:${t}}", "cpus": "${cpus:${t}}"})
        assert (cfg.jobs, cfg.cpus) == (jobs, cpus)
