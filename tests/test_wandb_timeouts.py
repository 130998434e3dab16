"""A wandb that hangs, or whose server does, costs a bounded time."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from offline_wandb import (
    SUMMARY,
    core_of,
    files,
    history,
    only_warning,
    row,
    started,
    use,
    warnings,
    write_metrics,
)

from pe_lab.experiment import tracking
from pe_lab.experiment.trackers import wandb as wandb_tracker

pytestmark = pytest.mark.usefixtures("no_wandb_account")


def test_an_interrupt_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def interrupt(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)

    run = started(tmp_path)
    # Where the tests run in the background of a shell, it is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, "log", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.log({"step": 1})
    signal.signal(signal.SIGINT, before)
    run.finish(None, 1)


def test_a_wandb_that_never_answers_costs_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    monkeypatch.setattr(wandb_tracker, "UPLOAD_SECONDS", 0.2)
    monkeypatch.setattr(wandb_tracker, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(tracking, "ABORT_SECONDS", 0.2)
    run = started(tmp_path)
    finish = wandb.Run.finish
    monkeypatch.setattr(wandb.Run, "finish", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(wandb, "teardown", lambda **_: time.sleep(60))
    assert isinstance(run._tracker, wandb_tracker.WandbTracker)
    hung, began = run._tracker._run, time.perf_counter()
    use(run)
    assert time.perf_counter() - began < 5
    assert "no answer within 0.4 s" in only_warning(caplog)
    finish(hung)


def test_a_killed_wandb_is_one_warning_and_the_next_process_logs_every_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(tmp_path)
    run.log(row(0))
    os.kill(core_of(os.getpid()), signal.SIGKILL)
    run.log(row(1))
    run.finish(None, 1)
    assert only_warning(caplog).startswith("wandb ")
    write_metrics(tmp_path, [row(0), row(1)])
    started(tmp_path).finish(None, 1)
    assert history(tmp_path) == [row(0), row(1)]
    assert not warnings(caplog)


def test_a_wandb_that_hangs_in_the_middle_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes rows until the pipe to it is full."""
    monkeypatch.setattr(wandb_tracker, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(tracking, "ABORT_SECONDS", 0.5)
    run = started(tmp_path)
    core = core_of(os.getpid())
    os.kill(core, signal.SIGSTOP)
    try:
        for step in range(5000):
            run.log(row(step))
        run.finish(SUMMARY, 0)
    finally:
        os.kill(core, signal.SIGCONT)
    message = only_warning(caplog)
    assert "wandb stopped: no answer within 0.5 s" in message
    assert message.endswith("; tracker=none does without it")


def offline_instead(caplog: pytest.LogCaptureFixture, folder: Path) -> str:
    """Why an online run was logged offline, from the one warning, which names its folder."""
    (message,) = warnings(caplog)
    caplog.clear()
    (file,) = files(folder)
    assert message.endswith(f"or check the network, then `wandb sync {file.parent}`")
    assert len(history(folder)) == 5
    assert json.loads((folder / "tracker.json").read_text())["complete"]
    return message


def test_online_without_a_key_falls_back_to_offline_and_asks_nothing_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    began = time.perf_counter()
    use(started(tmp_path, mode="online"))
    assert time.perf_counter() - began < 5
    assert "No API key" in offline_instead(caplog, tmp_path)


@pytest.mark.parametrize("server", ["refuses", "never answers"])
def test_online_with_a_dead_server_falls_back_to_offline_after_the_timeout(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    server: str,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if server == "never answers" else 9
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        began = time.perf_counter()
        use(started(tmp_path, mode="online", wait=1))
        assert time.perf_counter() - began < 8
        assert "wandb did not start online: " in offline_instead(caplog, tmp_path)
        # wandb is as it was: the next run of a sweep, offline, works.
        use(started(tmp_path / "next"))
    assert len(history(tmp_path / "next")) == 5
    assert not warnings(caplog)
