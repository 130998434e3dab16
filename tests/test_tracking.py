"""metrics.jsonl survives crashes and full disks; wandb records a run, and never stops one."""

import errno
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pe_lab import tracking
from pe_lab.config import WandbConfig
from pe_lab.errors import RunError
from pe_lab.metrics_log import MetricsLog, read_metrics
from pe_lab.tracking import Wandb


def write_rows(path: Path, rows: list[dict[str, Any]]) -> int:
    with MetricsLog(path, 0) as log:
        for row in rows:
            log.write(row)
        log.sync()
        return log.size


def test_floats_come_back_exactly_and_every_line_is_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    floats = [0.1, 1 / 3, math.pi * 1e-300, 5e-324, -0.0, 2.0**53 + 2, 1e22]
    rows = [{"step": step, "train/loss": value} for step, value in enumerate(floats)]
    size = write_rows(path, rows)
    assert size == path.stat().st_size
    assert [row["train/loss"].hex() for row in read_metrics(path)] == [f.hex() for f in floats]

    write_rows(path, [{"step": 1, "a": math.nan, "b": -math.inf, "c": None}])
    strict = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert strict == {"step": 1, "a": None, "b": None, "c": None}


def test_a_resumed_run_cuts_back_to_its_checkpoint_and_remembers_what_was_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "train/loss": 1.0} for step in range(5)]
    keep = write_rows(path, rows[:2])
    with MetricsLog(path, None) as log:
        assert (log.cut, log.size) == (0, keep)
        for row in rows[2:]:
            log.write(row)
    with path.open("ab") as file:
        file.write(b'{"step": 5, "tra')

    with MetricsLog(path, keep) as log:
        assert log.cut == 3
        assert log.size == keep == path.stat().st_size
        log.write({"step": 2, "train/loss": 2.0})
    assert read_metrics(path) == [*rows[:2], {"step": 2, "train/loss": 2.0}]


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, 0) as log:
        assert (log.cut, log.size) == (0, 0)
    write_rows(path, [{"step": 3}])
    with MetricsLog(path, 0) as log:
        assert log.cut == 1
    assert path.read_bytes() == b""


def test_a_torn_last_line_is_left_out_and_an_appending_log_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    # A crash of the machine can leave zeros where the last row was to be.
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n\0\0\0\0')
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]
    with MetricsLog(path, None) as log:
        assert log.cut == 0
        log.write({"step": 3})
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


def test_a_broken_line_before_the_last_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"line 2 .*force=true"):
        read_metrics(path)


@pytest.mark.parametrize("keep", [1, 5, 13, 10_000])
def test_a_file_that_is_not_the_checkpoints_is_refused_and_left_alone(
    tmp_path: Path, keep: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n')
    with pytest.raises(RunError, match=rf"12 bytes.* {keep} bytes.*force=true"):
        MetricsLog(path, keep)
    assert path.read_bytes() == b'{"step": 1}\n'


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match=r"file/metrics.jsonl cannot be written \(Not a directory\): .*runs_dir"
    ):
        MetricsLog(tmp_path / "file" / "metrics.jsonl", 0)


@pytest.fixture
def small_disk(disk: Callable[[str], Path]) -> Path:
    return disk("64k")


def test_a_full_disk_is_one_sentence_and_leaves_whole_rows(small_disk: Path) -> None:
    path = small_disk / "metrics.jsonl"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 40_000)
    with MetricsLog(path, 0) as log:

        def fill() -> None:
            for step in range(1000):
                log.write({"step": step, "padding": "x" * 100})

        with pytest.raises(
            RunError,
            match=r"metrics.jsonl cannot be written \(No space left .*: make room",
        ):
            fill()
        assert log.size == path.stat().st_size
        written = len(read_metrics(path))
        filler.unlink()
        log.write({"step": written})
    assert [row["step"] for row in read_metrics(path)] == list(range(written + 1))
    assert written > 50


def test_a_row_half_written_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"

    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.room = file, 7

        def write(self, data: bytes) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written, self.room = self.file.write(data[: self.room]), 0
            return int(written)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    with MetricsLog(path, 0) as log:
        log.write({"step": 1})
        monkeypatch.setattr(log, "_file", Full(log._file))
        with pytest.raises(RunError, match="No space left"):
            log.write({"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n'


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


def started(folder: Path, *, mode: str = "offline", skip: int = 0, **more: Any) -> Wandb:
    cfg = WandbConfig(
        mode=mode, project="pe-lab-test", entity=None, tags=[], init_timeout=more.pop("wait", 20)
    )
    given: dict[str, Any] = {
        "run_id": "flipflop-cope-seed0-01234567",
        "name": "flipflop cope 0",
        "group": "sweep-1",
        "job_type": "cope",
        "tags": ["flipflop", "small"],
        "config": {"seed": 0, "train": {"lr": 1e-3, "betas": [0.9, 0.99]}, "none": None},
    }
    return Wandb(cfg, folder, skip=skip, **(given | more))


def inspect(folder: Path, *options: str) -> str:
    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", str(file), "--json", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def history(folder: Path) -> list[dict[str, Any]]:
    records = map(json.loads, inspect(folder).splitlines())
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    return [{k: v for k, v in item.items() if not k.startswith("_")} for item in items]


TABLE: tuple[list[str], list[list[Any]]] = (
    ["split", "error", "n"],
    [["in_domain", 0.25, 10], ["ood/long", None, None]],
)


def test_an_offline_run_reads_back(
    tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    rows = [
        {"step": 10, "train/loss": 2.0, "lr": 0.1},
        {"step": 20, "train/loss": 1.0, "lr": math.nan},
        {"step": 20, "ood/long/error": 0.5, "ood/long/error_seq": 0.9},
        {"step": 30, "train/loss": 1.5, "lr": None},
    ]
    run = started(tmp_path)
    for row in rows:
        run.log(row)
    run.finish({"ood/long/error": 0.75, "in_domain/error": 0.25, "params/total": 7}, TABLE, 0)
    run.log({"step": 40, "train/loss": 1.0})
    run.finish({}, None, 1)

    records = [json.loads(line) for line in inspect(tmp_path).splitlines()]
    (start,) = (record["run"] for record in records if record["type"] == "run")
    assert start["run_id"] == "flipflop-cope-seed0-01234567"
    assert start["display_name"] == "flipflop cope 0"
    assert (start["run_group"], start["job_type"]) == ("sweep-1", "cope")
    assert (start["project"], start["tags"]) == ("pe-lab-test", ["flipflop", "small"])
    metrics = [record["metric"] for record in records if record["type"] == "metric"]
    assert {"name": "step", "options": {"defined": True, "hidden": True}} in metrics
    assert any((m.get("glob_name"), m.get("step_metric")) == ("*", "step") for m in metrics)

    items = history(tmp_path)
    assert [item["step"] for item in items] == [10, 20, 20, 30, 30]
    assert items[0] == rows[0]
    assert items[2] == rows[2]

    whole = json.loads(inspect(tmp_path, "--summary"))
    assert whole["config"] == {
        "seed": 0,
        "train": {"lr": 1e-3, "betas": [0.9, 0.99]},
        "none": None,
    }
    assert (whole["state"], whole["exit_code"]) == ("finished", 0)
    summary = whole["summary"]
    assert summary["train/loss"] == {"min": 1.0, "last": 1.5}
    assert summary["ood/long/error"] == {"min": 0.5, "last": 0.75}
    assert summary["in_domain/error"] == {"min": 0.25, "last": 0.25}
    assert summary["params/total"] == 7
    (table,) = (tmp_path / "wandb").rglob("*.table.json")
    assert json.loads(table.read_text()) == {"columns": TABLE[0], "data": TABLE[1]}

    assert not ours(caplog)
    assert list(elsewhere.iterdir()) == []
    assert not list((tmp_path / "home").rglob("staging"))
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_runs_of_one_process_stay_apart_and_a_resumed_one_sends_no_row_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for seed, skip in enumerate([0, 3]):
        run = started(tmp_path / str(seed), run_id=f"run-{seed}", skip=skip)
        for step in range(4):
            run.log({"step": step, "train/loss": seed + step / 10})
        if seed:
            run.finish({}, None, 1)
        # The first is left open, as by an exception: the second must not write into it.
        else:
            first = run
    first.log({"step": 4, "train/loss": 0.4})
    first.finish({}, None, 0)
    assert history(tmp_path / "0") == [{"step": s, "train/loss": s / 10} for s in range(5)]
    assert history(tmp_path / "1") == [{"step": 3, "train/loss": 1.3}]
    assert json.loads(inspect(tmp_path / "1", "--summary"))["exit_code"] == 1
    assert not ours(caplog)


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "pe_lab"]


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = ours(caplog)
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert "\n" not in message
    assert "metrics.jsonl" in message
    caplog.clear()
    return message


def use(run: Wandb) -> None:
    for step in range(3):
        run.log({"step": step, "train/loss": 1.0})
    run.finish({"in_domain/error": 0.5}, TABLE, 0)


def test_disabled_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    use(started(tmp_path, mode="disabled"))
    assert not (tmp_path / "wandb").exists()


def test_a_failing_import_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
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


def test_a_full_disk_is_one_warning(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    use(started(small_disk))
    message = only_warning(caplog)
    assert "No space left on device" in message
    assert f"free space or give write access at {small_disk}" in message


# wandb exits where its own process ended badly; log() is the caller's thread, where that passes.
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
        raise KeyboardInterrupt

    run = started(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, "log", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.log({"step": 1})
    run.finish({}, None, 1)


def test_a_wandb_that_never_answers_costs_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    run = started(tmp_path)
    finish = wandb.Run.finish
    monkeypatch.setattr(wandb.Run, "finish", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(tracking, "UPLOAD_SECONDS", 0.2)
    monkeypatch.setattr(tracking, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(wandb, "teardown", lambda **_: time.sleep(60))
    hung, began = run._run, time.perf_counter()
    use(run)
    assert time.perf_counter() - began < 5
    assert "no answer within 0.4 s" in only_warning(caplog)
    finish(hung)


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
    assert len(history(tmp_path / "next")) == 4
    assert not ours(caplog)
