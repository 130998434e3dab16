"""A wandb that fails is one warning, and does not stop the run."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
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
from program import assert_has

from pe_lab.experiment import tracking
from pe_lab.experiment.trackers import wandb as wandb_tracker

pytestmark = pytest.mark.usefixtures("no_wandb_account")


@pytest.fixture
def small_disk(disk: Callable[[str], Path]) -> Path:
    return disk("3m")


def fill(disk: Path, left: int = 0) -> Path:
    """Take the disk's room with a file, but for so many bytes."""
    free = shutil.disk_usage(disk).free - left
    (disk / "filler").write_bytes(b"x" * free)
    return disk / "filler"


@pytest.fixture
def without_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)


@pytest.mark.usefixtures("without_wandb")
def test_disabled_does_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    use(started(tmp_path, mode="disabled"))
    assert not (tmp_path / "wandb").exists()
    assert not warnings(caplog)


@pytest.mark.usefixtures("without_wandb")
def test_a_failing_import_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    use(started(tmp_path))
    assert "install wandb" in only_warning(caplog)


@pytest.mark.parametrize("place", ["file/run", "run"])
def test_an_unwritable_folder_is_one_warning(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    if place == "run":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "wandb").touch()
    use(started(tmp_path / place))
    assert f"write access at {tmp_path / place}" in only_warning(caplog)


def test_a_read_only_disk_is_one_warning(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Root may not write to it either."""
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    use(started(small_disk / "run"))
    assert f"Read-only file system: '{small_disk}/run/wandb'; " in only_warning(caplog)


def test_wandb_moving_elsewhere_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    init = wandb.init
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.setattr(wandb, "init", lambda **options: init(**options | {"dir": str(away)}))
    use(started(tmp_path / "run"))
    assert f"Permission denied: '{tmp_path}/run/wandb'" in only_warning(caplog)


@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
def test_a_full_disk_is_one_warning(
    small_disk: Path,
    when: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if when == "before":
        fill(small_disk)
    run = started(small_disk)
    run.log(row(0))
    if when == "in the middle":
        fill(small_disk)
    run.log(row(1))
    if when == "at the end":
        fill(small_disk)
    run.finish(SUMMARY, 0)
    message = only_warning(caplog)
    assert_has(
        message, "No space left on device", f"free space or give write access at {small_disk}"
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("what", ["the folder", "the file"])
def test_wandbs_files_taken_away_is_one_warning(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(tmp_path)
    run.log(row(0))
    if what == "the folder":
        shutil.rmtree(tmp_path / "wandb")
    else:
        (file,) = files(tmp_path)
        file.unlink()
    run.log(row(1))
    run.finish(SUMMARY, 0)
    message = only_warning(caplog)
    assert_has(message, "No such file", f"give write access at {tmp_path}/wandb")


# wandb exits where its process ended badly.
@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("init", ValueError("one\ntwo")),
        ("log", ValueError("one\ntwo")),
        ("finish", ValueError("one\ntwo")),
        ("finish", SystemExit(3)),
    ],
)
def test_whatever_fails_in_wandb_is_one_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    at: str,
    error: BaseException,
) -> None:
    import wandb

    def fail(*_: Any, **__: Any) -> None:
        raise error

    owner = wandb if at == "init" else wandb.Run
    monkeypatch.setattr(owner, at, fail)
    use(started(tmp_path))
    assert str(error).split()[0] in only_warning(caplog)


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
