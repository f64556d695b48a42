"""Evaluations and scripts write into the run's folder too; a disk that is full there is no error of theirs."""

from __future__ import annotations

import errno
import json
import socket

import pytest

from cleanrl_worker import link
from cleanrl_worker.modes.child import supervised


def failing(number: int) -> int:
    raise OSError(number, "it was not written")


def test_a_full_disk_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(link.ENV_FD, str(theirs.detach()))
    assert supervised("policy_eval", lambda _: failing(errno.ENOSPC)) == 1
    with ours, ours.makefile() as lines:
        (fact,) = map(json.loads, lines)
    assert (fact["kind"], fact["reason"]) == ("failing", "DiskFull")
    assert "Free space on the volume" in fact["message"]


def test_any_other_error_keeps_its_traceback() -> None:
    with pytest.raises(OSError, match="not written"):
        supervised("policy_eval", lambda _: failing(errno.EIO))
