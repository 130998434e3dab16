"""wandb has every row of a run once, also of one that was resumed; its failures are one warning."""

import json
import math
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from offline_wandb import (
    CONFIG,
    RUN_ID,
    SUMMARY,
    files,
    history,
    only_warning,
    records,
    row,
    start,
    started,
    use,
    warnings,
    whole,
    write_metrics,
)

from pe_lab.core.metrics import TABLED

pytestmark = pytest.mark.usefixtures("no_wandb_account")


def test_an_offline_run_reads_back(
    tmp_path: Path, no_wandb_account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        {"step": 10, "train/loss": 2.0, "lr": 0.1},
        {"step": 20, "train/loss": 1.0, "lr": math.nan},
        {"step": 20, "ood/long/error": 0.5, "ood/far/error": 1.0, "ood/long/n": 4},
        {"step": 30, "train/loss": 1.5, "lr": None},
    ]
    run = started(tmp_path)
    for one in rows:
        run.log(one)
    run.finish(SUMMARY, 0)
    run.log(row(40))
    run.finish(None, 1)

    (file,) = files(tmp_path)
    begun = start(file)
    assert begun["run_id"].startswith(RUN_ID + "-")
    assert (begun["run_group"], begun["job_type"]) == ("sweep-1", "cope")
    assert (begun["project"], begun["tags"]) == ("pe-lab-test", ["flipflop", "cope", "1L-d128"])
    assert begun["git"] == {"commit": "0123abcd" * 5}
    metrics = [record["metric"] for record in records(file) if record["type"] == "metric"]
    assert {"name": "step", "options": {"defined": True, "hidden": True}} in metrics
    assert any((m.get("glob_name"), m.get("step_metric")) == ("*", "step") for m in metrics)
    assert {m["name"] for m in metrics if m.get("options", {}).get("hidden")} == {"step"}

    items = history(tmp_path)
    assert [item["step"] for item in items] == [10, 20, 20, 30, 30, 30]
    assert items[0] == rows[0]
    assert items[2] == rows[2]
    assert items[4] == {
        **{"step": 30, "in_domain/error": 0.25, "in_domain/error_low": 0.2},
        **{"in_domain/loss": 0.5, "ood/long/error": 0.75, "ood/far/error": 0.25},
    }

    read = whole(file)
    assert read["config"] == {**CONFIG, "setting": "cope model.d_model=128"}
    assert (read["state"], read["exit_code"]) == ("finished", 0)
    numbers = {key: value for key, value in SUMMARY["metrics"].items() if value is not None}
    assert numbers.items() <= read["summary"].items()
    # One split was not measured.
    assert "ood/error" not in read["summary"]
    assert read["summary"]["train/loss"] == 1.5
    lengths, table = sorted((tmp_path / "wandb").rglob("media/table/*.table.json"))
    assert json.loads(lengths.read_text())["columns"] == ["split", "length", "error", "n"]
    assert json.loads(table.read_text())["columns"] == ["split", *TABLED]

    assert not warnings(caplog)
    assert list(no_wandb_account.iterdir()) == []


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
    assert [start(file)["run_id"] for file in files(tmp_path)] == [run_id]
    assert not warnings(caplog)


@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
def test_a_full_disk_is_one_warning(
    disk: Callable[[str], Path], when: str, caplog: pytest.LogCaptureFixture
) -> None:
    small_disk = disk("3m")

    def fill(now: str) -> None:
        if when == now:
            size = shutil.disk_usage(small_disk).free
            (small_disk / "filler").write_bytes(b"x" * size)

    fill("before")
    run = started(small_disk)
    run.log(row(0))
    fill("in the middle")
    run.log(row(1))
    fill("at the end")
    run.finish(SUMMARY, 0)
    assert "No space left on device" in only_warning(caplog)


# wandb exits where its process ended badly.
@pytest.mark.parametrize(
    ("at", "error"),
    [("init", ValueError("one\ntwo")), ("log", ValueError("one\ntwo")), ("finish", SystemExit(3))],
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

    monkeypatch.setattr(wandb if at == "init" else wandb.Run, at, fail)
    use(started(tmp_path))
    assert str(error).split()[0] in only_warning(caplog)
    if at == "init":
        monkeypatch.setitem(sys.modules, "wandb", None)
        use(started(tmp_path / "not installed"))
        assert "failed to start" in only_warning(caplog)


@pytest.mark.parametrize("server", ["no key", "refuses", "never answers"])
def test_online_without_a_server_falls_back_to_offline(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    server: str,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if server == "never answers" else 9
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        if server != "no key":
            monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
        began = time.perf_counter()
        use(started(tmp_path, mode="online", wait=1))
        assert time.perf_counter() - began < 8
    (message,), (file,) = warnings(caplog), files(tmp_path)
    assert "wandb did not start online: " in message
    assert message.endswith(f"or check the network, then `wandb sync {file.parent}`")
    assert len(history(tmp_path)) == 5
