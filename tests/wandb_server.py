"""A minimal wandb server that records what wandb's clients send."""

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
