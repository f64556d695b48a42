"""A stand-in for the W&B server: as much of its API as W&B's own client asks for, on loopback."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KEY = "0123456789abcdef0123456789abcdef01234567"


class StandIn(http.server.ThreadingHTTPServer):
    """Keeps what it was told: runs by name, history lines, files, and the requests that carried credentials."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.runs: dict[str, dict[str, Any]] = {}
        self.lines: dict[str, list[dict[str, Any]]] = {}
        """History by run. A line lands where its sender says that it belongs, over what was there."""
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.authorized = 0
        self.bodies: list[bytes] = []

    @property
    def history(self) -> list[dict[str, Any]]:
        return [line for lines in self.lines.values() for line in lines]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """W&B hangs up on idle connections."""

    def ask(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "RunResumeStatus" in query:
            name = variables["name"]
            if name not in self.runs:
                return {"model": None}
            counts = {"historyLineCount": len(self.lines.get(name, [])), "eventsLineCount": 0, "logLineCount": 0}
            tails = {
                "historyTail": "[]",
                "eventsTail": "[]",
                "summaryMetrics": "{}",
                "config": "{}",
                "wandbConfig": '{"t": 1}',  # without this, W"wandbConfig": "{}",B takes the run for one that never began
            }
            bucket = {"id": "b", "name": name, "displayName": name, "tags": [], "notes": None, **counts, **tails}
            return {"model": {"id": "p", "name": "p", "entity": {"id": "e", "name": "team"}, "bucket": bucket}}
        if "upsertBucket" in query:
            run = self.runs.setdefault(variables["name"], {})
            run |= {name: value for name, value in variables.items() if value is not None}
            project = {"id": "p", "name": run["project"], "entity": {"id": "e", "name": run.get("entity") or "team"}}
            bucket = {"id": "b", "name": variables["name"], "displayName": run.get("displayName"), "config": "{}"}
            bucket |= {"historyLineCount": 0, "sweepName": None, "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/storage/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "viewer" in query.lower():
            return {"viewer": {"id": "u", "entity": "team", "username": "u", "flags": "{}", "teams": {"edges": []}}}
        return {}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        told = self.server
        told.requests.append(f"{self.command} {self.path}")
        told.authorized += self.headers.get("Authorization") is not None
        told.bodies.append(body)
        answer: dict[str, Any] = {}
        if self.path == "/graphql":
            asked = json.loads(body)
            answer = {"data": told.ask(asked["query"], asked.get("variables") or {})}
        elif self.path.endswith("/file_stream"):
            files = json.loads(body).get("files", {})
            sent = files.get("wandb-history.jsonl", {})
            lines = told.lines.setdefault(self.path.split("/")[-2], [])
            content, offset = [json.loads(line) for line in sent.get("content", ())], sent.get("offset", 0)
            lines[offset : offset + len(content)] = content
        elif self.path.startswith("/storage/"):
            told.files[self.path.removeprefix("/storage/")] = body
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST  # noqa: N815 - the names that the base class looks for

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def wandb_server() -> Iterator[StandIn]:
    server = StandIn()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment without anybody's own W&B settings, and with a home that nobody has logged in from."""
    home = tmp_path / "home"
    home.mkdir()
    mine = ("WANDB_", "CLEANRL_", "MOSAIC_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**inherited, "HOME": str(home), "OMP_NUM_THREADS": "1"}
