"""A minimal wandb server that records what wandb's clients send."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0" * 40


def client_environment(url: str) -> dict[str, str]:
    """The variables with which wandb's clients find the server; any key is one."""
    return {"WANDB_BASE_URL": url, "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false"}


class Server:
    """What was sent: of each run its rows and what it was called, files, and saved views."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.runs: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.ended: dict[str, int] = {}
        self.files: list[str] = []
        self.views: list[dict[str, Any]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What makes a client talk to it."""
        return client_environment(self.url)

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of a GraphQL answer; empty for what no client insists on."""
        project = {"id": "p", "name": variables.get("project"), "entity": {"id": "e", "name": "me"}}
        if operation in ("Viewer", "GetDefaultEntity"):
            return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}"}}
        if operation == "UpsertBucket":
            run = self.runs.setdefault(variables["name"], {})
            run |= {key: value for key, value in variables.items() if value is not None}
            return {"upsertBucket": {"bucket": self._run(run) | {"project": project}}}
        if operation == "RunResumeStatus":
            run = self.runs.get(variables["name"], {})
            return {"model": project | {"bucket": self._run(run) if run else None}}
        if operation == "CreateArtifact":
            latest = {"latestArtifact": {"id": "a"}}
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": latest}
            return {"createArtifact": {"artifact": artifact}}
        if operation == "ArtifactType":
            return {"project": None}
        if operation == "CreateRunFiles":
            files = [{"name": f, "uploadUrl": f"{self.url}/put/{f}"} for f in variables["files"]]
            return {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files}}
        if operation == "UpsertView2":
            self.views.append(variables)
            view = {"id": "v", "name": variables["name"]}
            return {"upsertView": {"view": view, "inserted": True}}
        return {}

    def _run(self, run: dict[str, Any]) -> dict[str, Any]:
        rows = self.rows.get(run["name"], [])
        return {
            "id": "x",
            "name": run["name"],
            "displayName": run.get("displayName"),
            "description": "",
            "config": run.get("config", "{}"),
            "sweepName": None,
            "summaryMetrics": "{}",
            "logLineCount": 0,
            "historyLineCount": len(rows),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
            "eventsTail": "[]",
            "tags": run.get("tags"),
            "notes": run.get("notes"),
            "wandbConfig": '{"t": 1}',
        }

    def stream(self, run: str, sent: dict[str, Any]) -> None:
        """Rows of a run, to be put at the place that the client names."""
        if history := sent.get("files", {}).get("wandb-history.jsonl"):
            rows = self.rows.setdefault(run, [])
            at, new = history["offset"], [json.loads(line) for line in history["content"]]
            rows[at : at + len(new)] = new
        if sent.get("complete"):
            self.ended[run] = sent["exitcode"]


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a free port, as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = self._body()
            if self.path == "/graphql":
                request = json.loads(body)
                operation = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
                name = operation[1] if operation else ""
                self._send({"data": server.answer(name, request.get("variables") or {})})
            else:
                server.stream(self.path.split("/")[-2], json.loads(body))
                self._send({"exitcode": None, "limits": {}})

        def do_PUT(self) -> None:
            self._body()
            server.files.append(self.path.removeprefix("/put/"))
            self._send({})

        def do_GET(self) -> None:
            self._send({})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            packed = self.headers.get("Content-Encoding") == "gzip"
            return gzip.decompress(body) if packed else body

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
