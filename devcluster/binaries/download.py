"""The official download of a program, taken only when its published SHA-256 agrees."""

from __future__ import annotations

import re
import shutil
import socket
import tarfile
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from devcluster.binaries.cache import sha256_of
from devcluster.binaries.catalog import Program, architecture, system
from devcluster.binaries.errors import BinaryError, Unavailable
from devcluster.progress import Progress

CONNECT_SECONDS = 4.0
READ_SECONDS = 30.0
_CHUNK = 1 << 20
_refused: set[str] = set()
"""Hosts that did not answer; each is asked once, not again for every program."""


def fetch(program: Program, version: str, folder: Path, progress: Progress) -> Path:
    """Download the program into `folder` and return its file.

    Raises Unavailable when the site can't be reached or has no such version, BinaryError when what it sent is wrong.
    """
    source = program.download
    if source is None:
        raise Unavailable(f"{program.name} has no official download with a published checksum")
    words = {"version": version, "bare": version.removeprefix("v"), "os": system(), "arch": architecture()}
    url = source.url.format(**words)
    wanted = _published_sha256(source.checksums.format(**words), url)
    file = folder / f"{program.name}.download"
    _save(url, file, progress)
    if (found := sha256_of(file)) != wanted:
        raise BinaryError(f"{url} has the SHA-256 {found}, but {wanted} is published; the file was not used")
    return _unpack(file, source.member.format(**words), folder / program.name) if source.member else file


def _published_sha256(url: str, file_url: str) -> str:
    with _open(url) as answer:
        try:
            text = answer.read(_CHUNK).decode("ascii", "replace")
        except (OSError, HTTPException) as error:
            raise Unavailable(f"the checksum at {url} can't be read ({error})") from error
    name = urlsplit(file_url).path.rpartition("/")[2]
    for line in text.splitlines():
        match = re.fullmatch(r"([0-9a-fA-F]{64})(?:\s+\*?(\S+))?\s*", line)
        if match and match[2] in {None, name}:
            return match[1].lower()
    raise Unavailable(f"{url} publishes no SHA-256 of {name}")


def _save(url: str, file: Path, progress: Progress) -> None:
    with _open(url) as answer, file.open("wb") as target:
        length = int(answer.headers.get("Content-Length") or 0)
        received = 0
        try:
            while chunk := answer.read(_CHUNK):
                target.write(chunk)
                received += len(chunk)
                progress.fraction = received / length if length else None
        except (OSError, HTTPException) as error:
            raise BinaryError(f"the download of {url} broke off ({error})") from error
    if received < length:
        raise BinaryError(f"the download of {url} broke off after {received} of {length} bytes")


def _open(url: str) -> HTTPResponse:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in _refused:
        raise Unavailable(f"{host} can't be reached")
    try:
        if parts.scheme not in urllib.request.getproxies():
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        answer = urllib.request.urlopen(url, timeout=READ_SECONDS)  # noqa: S310 - addresses come from the catalog
    except urllib.error.HTTPError as error:
        error.close()
        raise Unavailable(f"{url} is not there ({error.code} {error.reason})") from error
    except (OSError, HTTPException) as error:
        _refused.add(host)
        raise Unavailable(f"{host} can't be reached") from error
    assert isinstance(answer, HTTPResponse)
    return answer


def _unpack(archive: Path, member: str, target: Path) -> Path:
    """Take one regular file out of an archive; nothing else of it touches the disk."""
    try:
        with tarfile.open(archive) as tar:
            content = tar.extractfile(member)
            if content is None:
                raise BinaryError(f"{member} in {archive.name} is not a file")
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise BinaryError(f"{archive.name} does not hold {member} ({error})") from error
    return target
