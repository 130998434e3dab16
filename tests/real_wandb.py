"""A real server for wandb, openwandb on loopback, and what it has of a run.

``make test-wandb`` installs it in an environment of its own: a tool of the tests, no dependency.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wandb_server import KEY, client_environment


@dataclass
class RealServer:
    """One server; its data stay when it is killed."""

    program: str
    data: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which wandb's clients find it."""
        return client_environment(self.url)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.data.mkdir(exist_ok=True)
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--data-dir", str(self.data)]
        with (self.data / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", *place], stdout=log, stderr=log, cwd=self.data
            )
        end = time.monotonic() + 180
        while True:
            assert self.process.poll() is None, (self.data / "log.txt").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < end, "the server does not start"
                time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def run(self, run_id: str) -> dict[str, Any]:
        """What the server says of a run."""
        found: dict[str, Any] = json.loads(self._get(f"/api/v2/runs/{run_id}"))["run"]
        return found

    def rows(self, run_id: str) -> list[dict[str, Any]]:
        """The rows of a run in the order in which they came."""
        text = self._get(f"/files/default/pe-lab/{run_id}/wandb-history.jsonl").decode()
        return [json.loads(line) for line in text.splitlines() if line]

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self.url + path, headers={"x-wandb-api-key": KEY})
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: bytes = answer.read()
        return content


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def shell(line: str, cwd: Path, environment: dict[str, str]) -> str:
    """A line as a user types it, ``wandb`` being that of this environment; returns its output."""

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env={**os.environ, **environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
