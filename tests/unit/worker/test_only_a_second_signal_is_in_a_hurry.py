"""Who asks a run to stop gets a checkpoint; only whoever signals twice does without."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker import cli
from cleanrl_worker.modes import interactive
from cleanrl_worker.supervise import Launch, Stop, Supervisor

FENCED = Stop("canceled", "Fenced", "the run was deleted", 1)


class Nobody:
    def hear(self, fact: dict[str, Any]) -> None:
        raise AssertionError(fact)

    def tick(self) -> None:
        raise AssertionError("nothing runs here")


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    launch = Launch([], {}, tmp_path, tmp_path / "o", tmp_path / "e", speaks=True, talks=False, log_cap=1, log_keep=1)
    made = Supervisor(launch, Nobody(), grace_seconds=30, clock=lambda: 100.0)
    made._spoke = True
    monkeypatch.setattr(made, "_tell", lambda _: None)
    return made


def test_a_signal_after_a_request_leaves_the_time_that_the_request_gave(supervisor: Supervisor) -> None:
    """A deleted run hears from the gateway first and from the kubelet a moment later: it still has to save."""
    supervisor._begin_stop(FENCED)
    supervisor._on_signal(signal.SIGTERM)
    assert supervisor._kill_at == 130
    supervisor._on_signal(signal.SIGTERM)
    assert supervisor._kill_at == 100


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_run_has_begun_ends_the_worker_with_a_sentence(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    # A shell's background jobs are born deaf to Ctrl-C, these tests among them.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)

    def still_starting(*_: Any) -> int:
        os.kill(os.getpid(), number)
        raise AssertionError("it went on")

    monkeypatch.setattr(cli, "_run", still_starting)
    words = ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "9"]
    try:
        assert cli.main(words) == 128 + number
    finally:
        signal.signal(signal.SIGINT, heard)
    assert capsys.readouterr().err.endswith(f"cleanrl-worker: stopped by {number.name}; no run had begun\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_it_now(supervisor: Supervisor) -> None:
    supervisor._on_signal(signal.SIGINT)
    assert supervisor._kill_at == 130
    supervisor._on_signal(signal.SIGINT)
    assert supervisor._kill_at == 100


def test_ctrl_c_is_how_a_person_leaves_an_interactive_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def left(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(interactive, "main", left)
    words = ["--interactive", "--run-id", "r", "--env-id", "CartPole-v1", "--policy-path", "p"]
    assert (cli.main(words), capsys.readouterr().err) == (130, "")
