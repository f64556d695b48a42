"""A tiny program of version v1.4.2, a cache of its own, and no way out to the real machine's programs or network."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from devcluster.binaries import catalog, download, obtain
from devcluster.binaries.catalog import Download, Program


def script(version: str, words: str = "tool") -> bytes:
    """A program that reports a version."""
    return f"#!/bin/sh\necho '{words} version {version}'\n".encode()


@dataclass
class Workshop:
    """Where the tiny program comes from in a test, and what was done to get it."""

    root: Path
    program: Program
    built: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def place(self, folder: str, version: str) -> Path:
        """Put a copy of the given version into a folder, as a user might have one."""
        path = self.root / folder / self.program.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(script(version))
        path.chmod(0o755)
        return path

    def ensure(self, **options: str) -> Path:
        """What a caller does."""
        return obtain.ensure_many([self.program.name], progress=self.said.append, verbose=True, **options)[
            self.program.name
        ]

    def publish(self, site: Site, content: bytes, *, checksum: str | None = None) -> None:
        """Offer the program for download."""
        site.files["/v1.4.2/tool"] = content
        site.files["/v1.4.2/tool.sha256"] = (checksum or hashlib.sha256(content).hexdigest()).encode()
        self.use(site)

    def use(self, site: Site) -> None:
        """Take the site for the official one."""
        source = Download(url=site.url + "/{version}/tool", checksums=site.url + "/{version}/tool.sha256")
        self.program = catalog.PROGRAMS["tool"] = replace(self.program, download=source)


@dataclass
class Site:
    """A download site on loopback. A file with a `short` entry breaks off after that many bytes."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    short: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    module = tmp_path / "modules" / "kubernetes"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module example\n\ngo 1.26.0\n\nrequire example.test/tool v1.4.2\n")
    program = Program("tool", "kubernetes", requirement="example.test/tool", version_arguments=("--version",))
    shop = Workshop(tmp_path, program)

    def build(programs: list[Program], work: Path, _say: object) -> dict[str, Path]:
        shop.built += [wanted.name for wanted in programs]
        made = work / "tool"
        made.write_bytes(script("v1.4.2", "built tool"))
        return {"tool": made}

    monkeypatch.setattr(catalog, "MODULES", tmp_path / "modules")
    for name in list(catalog.PROGRAMS):
        monkeypatch.delitem(catalog.PROGRAMS, name)
    monkeypatch.setitem(catalog.PROGRAMS, "tool", program)
    monkeypatch.setattr(obtain, "build", build)
    monkeypatch.setattr(download, "_refused", set())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for variable in ("DEVCLUSTER_BIN_DIR", "KUBEBUILDER_ASSETS", "DEVCLUSTER_DOWNLOADS", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return shop


@pytest.fixture
def site() -> Iterator[Site]:
    files = Site(url="")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.asked.append(self.path)
            content = files.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: files.short.get(self.path, len(content))])

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield files
    server.shutdown()
    thread.join()
    server.server_close()
