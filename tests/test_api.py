"""``from pe_lab import run, sweep, load``: the command line as functions."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from program import Here, summary, the_run, tiny

from pe_lab import load, run, sweep
from pe_lab.cli.api import _write
from pe_lab.config.compose import OverridesParser
from pe_lab.core.errors import PeLabError, RunError, UsageError
from pe_lab.store.run_folder import RunFolder
from pe_lab.train.trainer import Trainer

WORDS = tiny("tracker=none", "train.steps=4", "eval.every=2", "eval.sequences=8")
WORDS.remove("pe=none")


def state() -> tuple[Any, ...]:
    """What of this process a run changes while it is at work."""
    loggers = [logging.getLogger(), logging.getLogger("pe_lab")]
    return (
        Path.cwd(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        [(one.level, list(one.handlers)) for one in loggers],
        GlobalHydra.instance().hydra,
        HydraConfig.instance().cfg,
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.random.get_rng_state().tolist(),
        dict(os.environ),
        sys.argv,
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Set by the first run of a process and read by cuBLAS alone.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return tmp_path


def test_it_is_the_command(here: Here, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(*WORDS, "pe=rope", "seed=3").status == 0
    path = the_run(folder / "runs")
    before = path.joinpath("summary.json").stat().st_mtime_ns
    words = [word for word in WORDS if not word.startswith(("train.steps", "tracker"))]
    one = run(*words, pe="rope", seed=3, steps=4, tracker="none")
    assert one.path == path
    assert one.summary == RunFolder(path).summary()
    assert path.joinpath("summary.json").stat().st_mtime_ns == before
    assert load("flipflop/rope/seed3") == one
    assert {"pe=rope", "seed=3"} <= {*one.summary["overrides"]}
    assert one.config["train"]["steps"] == 4
    assert one.errors["split"].to_list() == list(one.summary["splits"])
    assert one.errors["error"][0] == one.summary["metrics"]["in_domain/error"]
    assert one.metrics.filter(pl.col("in_domain/error").is_not_null())["step"].to_list() == [2]
    assert not one.model.training
    assert sum(p.numel() for p in one.model.parameters()) == one.summary["metrics"]["params/total"]
    assert "error in %" not in capsys.readouterr().out


def test_a_sweep_gives_the_table_of_its_runs() -> None:
    run(*WORDS, pe="rope", seed=5)
    frame = sweep(*WORDS, pe=["rope", "none"], seed=range(2))
    assert frame.select("pe", "seed", "state").rows() == [
        ("rope", 0, "finished"), ("rope", 1, "finished"),
        ("none", 0, "finished"), ("none", 1, "finished"),
    ]  # fmt: skip
    assert sweep(*WORDS, "pe=rope,none", "seed=0,1").equals(frame)


def test_the_process_is_as_before(here: Here) -> None:
    before = state()
    run(*WORDS)
    assert state() == before
    sweep(*WORDS, seed=[0, 1])
    assert state() == before
    with pytest.raises(UsageError):
        run(*WORDS, pe="coop")
    assert state() == before


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["pe=coop"], {}),
        (["pe=cope"], {"steps": 0}),
        (["pe=cope"], {"stps": 3}),
        (["pe=cope,rope"], {}),
        (["-m", "pe=cope"], {}),
        (["--cfg", "job"], {}),
        (["pe=cope"], {"config_dir": "none"}),
        (["pe=cope"], {"seed": object()}),
    ],
)
def test_errors_are_one_sentence(words: list[str], keys: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]+$"):
        run(*words, **keys)
    assert not Path("runs").exists()


def test_a_run_that_fails_is_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(trainer: Trainer) -> None:
        raise SystemExit(3)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", broken)
        before = state()
        with pytest.raises(RunError, match=r"the run called sys.exit\(3\)"):
            run(*WORDS)
        with pytest.raises(PeLabError, match=r"1 failed of 1 job \(.*sys.exit\(3\).*only what is"):
            sweep(*WORDS, seed=[1])
        assert state() == before
    assert run(*WORDS).summary["steps"] == 4


@pytest.mark.parametrize(
    ("function", "words"), [(run, ["seed=0"]), (sweep, ["seed=0,1", "hydra/launcher=basic"])]
)
def test_ctrl_c_is_a_keyboard_interrupt_and_the_call_continues(
    monkeypatch: pytest.MonkeyPatch, function: Any, words: list[str]
) -> None:
    """A sweep does not begin the next run."""
    step = Trainer.train_step

    def interrupted(trainer: Trainer) -> Any:
        step(trainer)
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = state()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            function(*WORDS, *words)
    assert state() == before
    assert (the_run(Path("runs")) / "checkpoint.pt").exists()
    function(*WORDS, *words)
    found = [summary(path)["steps"] for path in Path("runs").glob("*/*/seed*")]
    assert found == [4] * (2 if function is sweep else 1)


@pytest.mark.parametrize(
    "value",
    [3, 0.5, 1e-5, True, None, "cope", "two words", "3", "null", "a,b", 'q"uote', "sp=li,t", "ä",
     [1, 2], ["a b", None], {"a": 1, "b": [True, "x y"]}, Path("a/b c"), -1, "", "{x}", "~"],
)  # fmt: skip
def test_a_value_is_read_back_as_it_is(value: Any) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"pe.key={_write(value)}"])
    found = override.value()
    assert found == (str(value) if isinstance(value, Path) else value)
    assert isinstance(found, bool) == isinstance(value, bool)
