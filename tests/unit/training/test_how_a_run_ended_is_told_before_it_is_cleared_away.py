"""What releases a run may fail too, and must not hide why the run had ended."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker import link
from cleanrl_worker.algorithms import ppo
from cleanrl_worker.training.errors import Diverged
from cleanrl_worker.training.run import Run, launch


@pytest.mark.parametrize(
    ("fault", "code"), [(RuntimeError("no display"), None), (OSError(errno.ENOSPC, "it was not written"), 3)]
)
def test_a_divergence_is_told_whatever_fails_after_it(
    fault: Exception, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(link.ENV_FD, str(theirs.detach()))

    def close(_: Run) -> None:
        raise fault

    def train(_: Any, run: Run) -> None:
        run.publisher.close()
        raise Diverged("NaNLoss", "the loss is nan")

    monkeypatch.setattr(Run, "close", close)
    if code is None:
        with pytest.raises(RuntimeError, match="no display"):
            launch(ppo.Args, train, [])
    else:
        assert launch(ppo.Args, train, []) == code
    with ours, ours.makefile() as lines:
        told = [fact for fact in map(json.loads, lines) if fact["kind"] == "failing"]
    assert [(fact["reason"], fact["message"]) for fact in told] == [("NaNLoss", "the loss is nan")]
