"""wandb against a real server on loopback: every row arrives once (``make test-wandb``)."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from program import ROOT, command, rows, state, the_run, tiny
from wandb_server import RealServer, free_port, shell

pytestmark = [pytest.mark.wandb_server, pytest.mark.usefixtures("no_wandb_account")]

ONLINE, OFFLINE = "tracker.wandb.mode=online", "tracker.wandb.mode=offline"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    python = os.environ.get("OPENWANDB")
    if not python:
        pytest.skip("OPENWANDB names no interpreter: make test-wandb")
    made = RealServer(str(ROOT / python), tmp_path / "server", free_port())
    try:
        made.start()
        yield made
    finally:
        made.kill()


def start(server: RealServer, cwd: Path, *words: str) -> subprocess.Popen[str]:
    """The program in a separate process that finds the server."""
    return subprocess.Popen(
        [sys.executable, "-m", "pe_lab", *words],
        cwd=cwd,
        env={**os.environ, **server.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_rows(folder: Path, n: int, process: subprocess.Popen[str]) -> Path:
    """The run folder, once metrics.jsonl has so many rows."""
    end = time.monotonic() + 90
    while True:
        found = list(folder.glob("runs/*/*/*/metrics.jsonl"))
        if found and found[0].read_bytes().count(b"\n") >= n:
            return found[0].parent
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < end, "no rows"
        time.sleep(0.005)


def run_id(folder: Path) -> str:
    rows = json.loads((folder / "wandb" / "rows").read_text())
    return f"{'-'.join(folder.parts[-3:])}-{rows['id']}"


def logged(row: dict[str, Any]) -> dict[str, Any]:
    """A row without wandb's keys, the times and the mean, which metrics.jsonl does not have."""
    return {k: v for k, v in row.items() if k[0] != "_" and k[:5] != "time/" and k != "ood/error"}


def check(server: RealServer, folder: Path) -> dict[str, Any]:
    """The server has every row of metrics.jsonl once, the closing row and that of the tables."""
    sent = server.rows(run_id(folder))
    assert [row["_step"] for row in sent] == list(range(len(sent)))
    *came, closing, last = sent
    assert [logged(row) for row in came] == rows(folder)
    assert {"splits", "lengths"} <= last.keys()
    numbers = json.loads((folder / "summary.json").read_text())["metrics"]
    assert closing["in_domain/error"] == numbers["in_domain/error"]
    run = server.run(run_id(folder))
    assert run["state"] == "finished"
    assert run["summary"]["in_domain/error"] == numbers["in_domain/error"]
    return run


def test_online(server: RealServer, tmp_path: Path) -> None:
    words = tiny(ONLINE, "tracker.wandb.name=mine", "tracker.wandb.notes=why")
    done = command(*words, cwd=tmp_path, env=server.environment, status=0)
    folder = the_run(tmp_path / "runs")
    assert f"wandb: {server.url}/default/pe-lab/runs/{run_id(folder)}" in done.stdout
    run = check(server, folder)
    assert (run["display_name"], run["notes"]) == ("mine", "why")
    assert run["config"]["train"]["value"]["steps"] == 20
    (facts,) = run["config"]["_wandb"]["value"]["e"].values()
    (recorded,) = json.loads((folder / "environment.json").read_text())
    assert facts["git"]["commit"] == recorded["git_revision"]
    assert facts["python"].endswith(recorded["python"])


@pytest.mark.parametrize("mode", [ONLINE, OFFLINE])
def test_interrupted_and_resumed(server: RealServer, tmp_path: Path, mode: str) -> None:
    words = tiny(mode, "train.steps=400", "eval.every=50")
    process = start(server, tmp_path, *words)
    folder = wait_for_rows(tmp_path, 60, process)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert state(folder)["state"] == "interrupted"
    command(*words, cwd=tmp_path, env=server.environment, status=0)
    if mode == OFFLINE:
        # The line of docs/wandb.md.
        shell("wandb sync runs/*/*/*/wandb/offline-*", tmp_path, server.environment)
    check(server, folder)
