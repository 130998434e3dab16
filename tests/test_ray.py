"""A sweep on Ray: make test-ray."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from program import command, state, tiny
from suites import equal, folders, starts

pytestmark = pytest.mark.ray
RAY = ("-m", "hydra/launcher=ray")
WORDS = tiny("pe=none,cope", "seed=0,1", "train.steps=600", "train.checkpoint_every=10")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four runs, in one process."""
    folder = tmp_path_factory.mktemp("alone")
    command("-m", "hydra/launcher=basic", *WORDS, cwd=folder, status=0)
    return folder


@pytest.fixture(autouse=True)
def _without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


def ray(*words: str) -> None:
    """``ray WORDS`` of this environment."""
    subprocess.run([Path(sys.executable).with_name("ray"), *words], check=True)


def begin(cwd: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a sweep on Ray."""
    return subprocess.Popen([sys.executable, "-m", "pe_lab", *RAY, *words], cwd=cwd)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def checkpoints(cwd: Path) -> list[Path]:
    return [*cwd.glob("runs/*/*/seed*/checkpoint.pt")]


@pytest.fixture
def cluster() -> Iterator[None]:
    ray("start", "--head", "--num-cpus=1", "--port=6399", "--include-dashboard=false")
    ray("start", "--address=127.0.0.1:6399", "--num-cpus=1", '--resources={"second": 1}')
    yield
    ray("stop", "--force")


def test_the_run_of_a_killed_worker_goes_on(tmp_path: Path, alone: Path) -> None:
    sweep = begin(tmp_path, *WORDS, "hydra.launcher.workers=2")
    wait_for(lambda: bool(checkpoints(tmp_path)))
    killed = checkpoints(tmp_path)[0].parent
    os.kill(state(killed)["pid"], signal.SIGKILL)
    assert sweep.wait(300) == 0
    assert starts(killed) == 2
    assert sum(map(starts, folders(tmp_path).values())) == 5
    equal(tmp_path, alone)


@pytest.mark.usefixtures("cluster")
def test_the_runs_of_a_lost_node_go_on_elsewhere(tmp_path: Path, alone: Path) -> None:
    sweep = begin(tmp_path, *WORDS, "hydra.launcher.ray.init.address=auto")
    wait_for(lambda: len(checkpoints(tmp_path)) == 2)
    pattern = "raylet/raylet .*second"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True)
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    assert sweep.wait(300) == 0
    assert sum(map(starts, folders(tmp_path).values())) == 5
    equal(tmp_path, alone)


def test_ctrl_c_lets_workers_write_their_checkpoints(tmp_path: Path) -> None:
    words = [w.replace("600", "100000").replace("every=10", "every=100000") for w in WORDS]
    sweep = begin(tmp_path, *words)
    wait_for(lambda: any(tmp_path.glob("runs/*/*/seed*/metrics.jsonl")))
    sweep.send_signal(signal.SIGINT)
    assert sweep.wait(120) == 130
    begun = folders(tmp_path).values()
    assert {state(folder)["state"] for folder in begun} == {"interrupted"}
    assert len(checkpoints(tmp_path)) == len(begun) > 0
