"""The smallest of our programs, built for real from an empty cache, with the Go that the package index gives.

One cache serves the whole file: the standard library is compiled once, into a compiler's cache that nobody else uses.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.binaries import cache, catalog

PAUSE = catalog.PROGRAMS["pause"]


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A machine with Python and nothing of Go: caches are empty, and PATH leads to no go command."""
    root = tmp_path_factory.mktemp("bare")
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "go").exists()]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "XDG_"))}
    return {
        **kept,
        "PATH": os.pathsep.join(folders),
        "XDG_CACHE_HOME": str(root / "cache"),
        "GOCACHE": str(root / "compiler"),
        "GOMODCACHE": str(root / "modules"),
        "DEVCLUSTER_DOWNLOADS": "off",
    }


@pytest.fixture(scope="module")
def in_cache(surroundings: dict[str, str]) -> Iterator[Path]:
    """Where the program must end up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", surroundings["XDG_CACHE_HOME"])
        yield cache.place(PAUSE, PAUSE.version)


def start(surroundings: dict[str, str]) -> subprocess.Popen[str]:
    code = "import sys; from devcluster.binaries import cli_main; sys.exit(cli_main(['--build', 'pause']))"
    return subprocess.Popen(
        [sys.executable, "-c", code], env=surroundings, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=280)
    assert process.returncode == 0, said
    return said


def test_two_processes_build_it_once_without_go_on_the_machine(surroundings, in_cache):
    processes = [start(surroundings), start(surroundings)]
    said = [finish(process) for process in processes]
    assert sum("another process is making pause" in text for text in said) == 1
    assert cache.fault(PAUSE, PAUSE.version) is None
    assert list((in_cache.parent.parent.parent / "work").iterdir()) == []
    assert (in_cache.parent.parent.parent / "go").is_dir()


def test_it_is_static_and_ends_when_asked(in_cache):
    assert b"ld-linux" not in in_cache.read_bytes()
    process = subprocess.Popen([in_cache])
    assert process.poll() is None
    # A signal that arrives before the handler is in place ends it too, only with another code.
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) in {0, -signal.SIGTERM}


def test_a_tampered_program_is_built_again_to_the_same_bytes(surroundings, in_cache):
    sound = in_cache.read_bytes()
    in_cache.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    said = finish(start(surroundings))
    assert "its checksum differs; making it again" in said
    assert in_cache.read_bytes() == sound


def test_a_killed_build_leaves_nothing_that_looks_finished_and_the_next_one_succeeds(surroundings, in_cache):
    in_cache.with_name("record.json").unlink()
    work = in_cache.parent.parent.parent / "work"
    process = start(surroundings)
    deadline = time.monotonic() + 60
    while not any(work.glob("pause-*/source")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert cache.fault(PAUSE, PAUSE.version) is not None
    finish(start(surroundings))
    assert cache.fault(PAUSE, PAUSE.version) is None
    assert list(work.iterdir()) == []


def test_a_broken_go_module_proxy_is_one_sentence(surroundings, tmp_path):
    code = (
        "import sys; from devcluster.binaries import cli_main; sys.exit(cli_main(['--build', 'kube-network-policies']))"
    )
    cut_off = {**surroundings, "GOPROXY": "http://127.0.0.1:1", "GOMODCACHE": str(tmp_path / "empty")}
    answer = subprocess.run([sys.executable, "-c", code], env=cut_off, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "kube-network-policies could not be built: the Go module proxy can't be reached" in answer.stderr
    assert "Traceback" not in answer.stderr
