"""wandb records a run, whole and once, and never stops one."""

import json
import logging
import math
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
from offline_wandb import core_of, files, history, inspect, records, start, whole

from pe_lab.config.schema import WandbConfig
from pe_lab.experiment import wandb as wandb_log
from pe_lab.experiment.wandb import WandbLog
from pe_lab.experiment.wandb_labels import SPLIT_COLUMNS

ARGUMENTS: dict[str, Any] = {
    "id": "flipflop-cope-seed0-01234567",
    "name": "cope-seed0 d_model=128",
    "group": "sweep-1",
    "job_type": "cope",
    "tags": ["flipflop", "small"],
    "notes": "pe-lab task=flipflop",
    "config": {"seed": 0, "train": {"lr": 1e-3, "betas": [0.9, 0.99]}, "none": None},
}

SUMMARY: dict[str, Any] = {
    "steps": 30,
    "splits": {"in_domain": "in_domain", "long": "ood/long", "far": "ood/far", "too_long": None},
    "metrics": {
        **{"in_domain/error": 0.25, "in_domain/error_low": 0.2, "in_domain/n": 10},
        **{"in_domain/loss": 0.5, "in_domain/guess": 0.5},
        **{"ood/long/error": 0.75, "ood/long/loss": None, "ood/far/error": 0.25, "ood/far/n": 7},
        **{"params/total": 7, "time/train_s": 1.5},
    },
    "by": {"in_domain": {"length": {"2": {"error": 0.5, "n": 2}, "3-4": {"error": 0, "n": 8}}}},
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a working folder and an environment without a trace of wandb."""
    for key in [key for key in os.environ if key.startswith("WANDB_")]:
        # The service belongs to this process: without it, wandb would start another each time.
        if key != "WANDB_SERVICE":
            monkeypatch.delenv(key)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    return cwd


@pytest.fixture
def small_disk(disk: Callable[[str], Path]) -> Path:
    return disk("3m")


def fill(disk: Path, left: int = 0) -> Path:
    """Take the disk's room with a file, but for so many bytes."""
    free = shutil.disk_usage(disk).free - left
    (disk / "filler").write_bytes(b"x" * free)
    return disk / "filler"


def started(folder: Path, *, mode: str = "offline", **more: Any) -> WandbLog:
    wait, pictures = more.pop("wait", 20), more.pop("pictures", False)
    cfg = WandbConfig(
        mode=mode,
        project="pe-lab-test",
        entity=None,
        tags=[],
        pictures=pictures,
        init_timeout=wait,
    )
    return WandbLog(cfg, folder, ARGUMENTS | more)


def row(step: int) -> dict[str, Any]:
    return {"step": step, "train/loss": step / 10}


def write_metrics(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages shown to the user; debug messages only go to the log file."""
    ours = [record for record in caplog.records if record.name == "pe_lab"]
    return [record.getMessage() for record in ours if record.levelno > logging.DEBUG]


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    (message,) = warnings(caplog)
    assert "\n" not in message
    assert "metrics.jsonl has every number" in message
    caplog.clear()
    return message


def use(run: WandbLog) -> None:
    for step in range(3):
        run.log(row(step))
    run.finish(SUMMARY, 0)


def test_an_offline_run_reads_back(
    tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    rows = [
        {"step": 10, "train/loss": 2.0, "lr": 0.1},
        {"step": 20, "train/loss": 1.0, "lr": math.nan},
        {"step": 20, "ood/long/error": 0.5, "ood/far/error": 1.0, "ood/long/n": 4},
        {"step": 30, "train/loss": 1.5, "lr": None},
    ]
    run = started(tmp_path)
    for given in rows:
        run.log(given)
    run.finish(SUMMARY, 0)
    run.log(row(40))
    run.finish(None, 1)

    (file,) = files(tmp_path)
    begun = start(file)
    assert begun["run_id"].startswith(ARGUMENTS["id"] + "-")
    assert begun["display_name"] == ARGUMENTS["name"]
    assert (begun["run_group"], begun["job_type"]) == ("sweep-1", "cope")
    assert (begun["project"], begun["tags"]) == ("pe-lab-test", ["flipflop", "small"])
    assert begun["notes"] == "pe-lab task=flipflop"
    metrics = [record["metric"] for record in records(file) if record["type"] == "metric"]
    assert {"name": "step", "options": {"defined": True, "hidden": True}} in metrics
    assert any((m.get("glob_name"), m.get("step_metric")) == ("*", "step") for m in metrics)
    hidden = {m["name"] for m in metrics if m.get("options", {}).get("hidden")}
    assert hidden == {"step", "ood/long/n", "in_domain/error_low"}

    items = history(tmp_path)
    assert [item["step"] for item in items] == [10, 20, 20, 30, 30, 30]
    assert items[0] == rows[0]
    assert items[2] == rows[2] | {"ood/error": 0.75}
    assert items[4] == {
        **{"step": 30, "in_domain/error": 0.25, "in_domain/error_low": 0.2},
        **{"in_domain/loss": 0.5, "ood/long/error": 0.75, "ood/far/error": 0.25, "ood/error": 0.5},
    }

    words = [sys.executable, "-m", "wandb", "leet", "inspect", str(file), "--json"]
    assert subprocess.run(words, check=True, capture_output=True).stdout == inspect(file)
    read = whole(file)
    assert read["config"] == ARGUMENTS["config"]
    assert (read["state"], read["exit_code"]) == ("finished", 0)
    known = {key: value for key, value in SUMMARY["metrics"].items() if value is not None}
    assert known.items() <= read["summary"].items()
    assert read["summary"]["ood/error"] == 0.5
    assert read["summary"]["train/loss"] == 1.5
    lengths, table = sorted((tmp_path / "wandb").rglob("media/table/*.table.json"))
    content = json.loads(lengths.read_text())
    assert content["columns"] == ["split", "length", "error", "n"]
    assert content["data"] == [["in_domain", 2, 0.5, 2], ["in_domain", 4, 0, 8]]
    content = json.loads(table.read_text())
    assert content["columns"] == list(SPLIT_COLUMNS)
    assert content["data"][0] == ["in_domain", 0.25, 0.2, None, None, 0.5, 10, 0.5]
    assert content["data"][3] == ["too_long", *[None] * 7]

    assert not warnings(caplog)
    assert list(elsewhere.iterdir()) == []
    assert not list((tmp_path / "home").rglob("staging"))
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_runs_of_one_process_stay_apart_and_equal_ones_of_two_folders_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The first is left open, as by an exception: the second must not write into it.
    first, second = started(tmp_path / "0"), started(tmp_path / "1")
    second.log(row(7))
    second.finish(None, 1)
    first.log(row(0))
    first.finish(None, 0)
    assert history(tmp_path / "0") == [row(0)]
    assert history(tmp_path / "1") == [row(7)]
    (one,), (other,) = files(tmp_path / "0"), files(tmp_path / "1")
    assert whole(other)["exit_code"] == 1
    assert start(one)["run_id"] != start(other)["run_id"]
    assert not warnings(caplog)


@pytest.mark.parametrize("end", ["interrupted", "killed", "its file is gone"])
def test_a_resumed_run_has_every_row_once(
    tmp_path: Path, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped after 200 rows, of which the checkpoint counts 180."""
    first = started(tmp_path)
    for step in range(200):
        first.log(row(step))
    first.finish(None, 1)
    (file,) = files(tmp_path)
    run_id = start(file)["run_id"]
    if end != "interrupted":
        (tmp_path / "wandb" / "rows").unlink()
    if end == "killed":
        with file.open("r+b") as handle:
            handle.truncate(file.stat().st_size // 2)
    if end == "its file is gone":
        shutil.rmtree(file.parent)
    write_metrics(tmp_path, [row(step) for step in range(180)])

    second = started(tmp_path)
    for step in range(180, 210):
        second.log(row(step))
    second.finish(SUMMARY, 0)
    *logged, closing, tables = history(tmp_path)
    assert logged == [row(step) for step in range(210)]
    assert closing["in_domain/error"] == 0.25
    assert (tables["step"], tables["splits.nrows"]) == (30, 4)
    count = 2 if end == "interrupted" else 1
    assert [start(file)["run_id"] for file in files(tmp_path)] == [run_id] * count
    assert not warnings(caplog)


def test_a_run_that_was_killed_and_synced_becomes_another_run(tmp_path: Path) -> None:
    """How many of its rows reached the server is not known."""
    first = started(tmp_path)
    first.log(row(0))
    first.finish(None, 1)
    (file,) = files(tmp_path)
    (tmp_path / "wandb" / "rows").unlink()
    file.with_suffix(".wandb.synced").touch()
    write_metrics(tmp_path, [row(0)])

    second = started(tmp_path)
    second.log(row(1))
    second.finish(None, 1)
    steps = sorted(item["step"] for item in history(tmp_path))
    assert steps == [0, 0, 1]
    assert len({start(file)["run_id"] for file in files(tmp_path)}) == 2


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


@pytest.fixture
def read_only(small_disk: Path) -> Path:
    """A disk that nobody may write to, root neither."""
    (small_disk / "run").mkdir()
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    return small_disk / "run"


def test_a_read_only_disk_is_one_warning(
    read_only: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    use(started(read_only))
    assert f"Read-only file system: '{read_only}/wandb'; " in only_warning(caplog)


def test_a_home_that_cannot_be_written_does_not_matter(
    tmp_path: Path, read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(read_only))
    use(started(tmp_path / "run"))
    assert len(history(tmp_path / "run")) == 5


def test_wandb_moving_elsewhere_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    init = wandb.init
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.setattr(wandb, "init", lambda **given: init(**given | {"dir": str(away)}))
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
    assert "No space left on device" in message
    assert f"free space or give write access at {small_disk}" in message
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
    assert "No such file" in message
    assert f"give write access at {tmp_path}/wandb" in message


# wandb exits where its own process ended badly.
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

    run = started(tmp_path)
    finish = wandb.Run.finish
    monkeypatch.setattr(wandb.Run, "finish", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(wandb_log, "UPLOAD_SECONDS", 0.2)
    monkeypatch.setattr(wandb_log, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(wandb_log, "TEARDOWN_SECONDS", 0.2)
    monkeypatch.setattr(wandb, "teardown", lambda **_: time.sleep(60))
    hung, began = run._run, time.perf_counter()
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
    assert "wandb stopped" in only_warning(caplog)
    write_metrics(tmp_path, [row(0), row(1)])
    started(tmp_path).finish(None, 1)
    assert history(tmp_path) == [row(0), row(1)]
    assert not warnings(caplog)


def test_a_wandb_that_hangs_in_the_middle_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes rows until the pipe to it is full."""
    run = started(tmp_path)
    monkeypatch.setattr(wandb_log, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(wandb_log, "TEARDOWN_SECONDS", 0.5)
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
    # Offline it was already.
    assert message.endswith("; tracker.wandb.mode=disabled does without it")


def test_online_without_a_key_is_one_warning_and_no_question_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    began = time.perf_counter()
    use(started(tmp_path, mode="online"))
    assert time.perf_counter() - began < 5
    message = only_warning(caplog)
    assert "No API key" in message
    assert "wandb login" in message


@pytest.mark.parametrize("server", ["refuses", "never answers"])
def test_a_dead_server_costs_the_timeout_and_one_warning(
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
        assert "check the network" in only_warning(caplog)
        # wandb is as it was: the next run of a sweep, offline, works.
        use(started(tmp_path / "next"))
    assert len(history(tmp_path / "next")) == 5
    assert not warnings(caplog)
