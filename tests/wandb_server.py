"""Servers for wandb: one that records what clients send, and openwandb (``make test-wandb``)."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "0" * 40


def client_environment(url: str) -> dict[str, str]:
    """The variables with which wandb's clients find the server; any key is one."""
    return {"WANDB_BASE_URL": url, "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false"}


class Server:
    """The views that were saved."""

    def __init__(self, url: str) -> None:
        self.url, self.environment = url, client_environment(url)
        self.views: list[dict[str, Any]] = []

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of a GraphQL answer; empty for what no client insists on."""
        if operation in ("Viewer", "GetDefaultEntity"):
            return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}"}}
        if operation == "UpsertView2":
            self.views.append(variables)
            view = {"id": "v", "name": variables["name"]}
            return {"upsertView": {"view": view, "inserted": True}}
        return {}


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a free port, as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            operation = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
            name = operation[1] if operation else ""
            self._send({"data": server.answer(name, request.get("variables") or {})})

        def _send(self, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Clients hang up when they have what they want."""

    http = Quiet(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


@dataclass
class RealServer:
    """One server; its data stay when it is killed.

    Args:
        python: the interpreter of the environment that has openwandb.
    """

    python: str
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
        program = [self.python, str(Path(__file__).with_name("resuming_openwandb.py"))]
        place = {"OPENWANDB_PORT": str(self.port), "OPENWANDB_DATA_DIR": str(self.data)}
        with (self.data / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                program, stdout=log, stderr=log, cwd=self.data, env={**os.environ, **place}
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
