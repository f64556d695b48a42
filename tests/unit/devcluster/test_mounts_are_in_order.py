"""A container's mounts: a volume never hides what is mounted below it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from devcluster import mountorder


def mounts(*destinations: str) -> list[dict[str, str]]:
    return [{"destination": each} for each in destinations]


def test_parents_come_first_and_the_rest_stays_as_it_was() -> None:
    given = mounts("/proc", "/dev", "/dev/pts", "/usr", "/tmp/a/project", "/etc/hosts", "/tmp", "/dev/shm")
    ordered = mountorder.parents_first(given)
    assert ordered == mounts("/proc", "/dev", "/usr", "/tmp", "/dev/pts", "/etc/hosts", "/dev/shm", "/tmp/a/project")


def test_runc_is_called_as_it_was_asked_with_the_bundle_in_order(tmp_path: Path) -> None:
    bundle, programs = tmp_path / "a bundle", tmp_path / "programs"
    bundle.mkdir()
    programs.mkdir()
    config = bundle / "config.json"
    config.write_text(json.dumps({"process": {}, "mounts": mounts("/tmp/project", "/tmp")}))
    (programs / "runc").write_text('#!/bin/sh\nfor each in "$@"; do echo "<$each>"; done\nexit 3\n')
    (programs / "runc").chmod(0o755)
    mountorder.write_runc(tmp_path / "runc")

    def call(*arguments: str) -> tuple[int, str]:
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        answer = subprocess.run(
            [tmp_path / "runc", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        return answer.returncode, answer.stdout

    assert call("state", "one") == (3, "<state>\n<one>\n")
    assert json.loads(config.read_text())["mounts"] == mounts("/tmp/project", "/tmp")
    words = ["--root", "/run/x", "create", "--bundle", str(bundle), "one two"]
    assert call(*words) == (3, "".join(f"<{word}>\n" for word in words))
    assert json.loads(config.read_text()) == {"process": {}, "mounts": mounts("/tmp", "/tmp/project")}
