from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run's folder with a little of everything: files, an empty folder, links inside and out, a name that is no UTF-8."""

    def make(*events: str, name: str = "01RUN", age: float = 0.0) -> Path:
        import time

        run = tmp_path / "runs" / name
        (run / "tensorboard" / "x").mkdir(parents=True)
        (run / "videos").mkdir()
        lines = [
            {"event": event, "payload": {}, "run_id": name, "seq": number, "timestamp": time.time() - age}
            for number, event in enumerate(events, start=1)
        ]
        (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "config.json").write_text(json.dumps({"run_id": name, "algo": "ppo"}))
        (run / "tensorboard" / "x" / "events.out.tfevents").write_bytes(os.urandom(2**20 + 17))
        (run / ("long-" + "n" * 180)).write_text("long")
        Path(os.fsdecode(os.fsencode(run) + b"/caf\xe9")).write_text("not UTF-8")
        (run / "latest").symlink_to("tensorboard/x")
        (tmp_path / "secret").write_text("do not pack me")
        (run / "outside").symlink_to(tmp_path / "secret")
        (run / "script.sh").write_text("#!/bin/sh\n")
        (run / "script.sh").chmod(0o755)
        return run

    return make
