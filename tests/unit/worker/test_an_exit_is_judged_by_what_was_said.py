"""From how the child left to what the run came to."""

from __future__ import annotations

from typing import Any

import pytest

from cleanrl_protocol.record import TerminationRecord
from cleanrl_worker.supervise import Exit, Stop, deadline_stop, judge, signal_stop


def left(status: int = 0, **facts: Any) -> Exit:
    base: dict[str, Any] = {
        "stop": None,
        "forced": False,
        "spoke": True,
        "said": {},
        "stderr_tail": ["last words"],
        "ran_out_of_memory": False,
        "survivors": [],
    }
    return Exit(status=status, **{**base, **facts})


def test_what_it_came_to_is_in_its_own_words() -> None:
    assert judge(left(said={"finished": {"step": 5, "message": "20 episodes"}})).message == "20 episodes"
    assert judge(left(said={"finished": {"step": 5}})).message == "The run did all its steps."
    crashed = judge(left(-11, said={"finished": {"step": 5}})).message
    assert crashed.startswith("The run did all its steps.")
    assert "SIGSEGV" in crashed


FINISHED = {"finished": {"step": 5}}
STOPPED = {"stopped": {"step": 3}}
CANCEL = Stop("canceled", "Canceled", "asked to", 0)


@pytest.mark.parametrize(
    ("exited", "outcome", "code", "reason"),
    [
        (left(said=FINISHED), "completed", 0, "Completed"),
        (left(said=FINISHED, stop=CANCEL), "completed", 0, "Completed"),
        (left(spoke=False), "completed", 0, "Completed"),
        (left(), "failed", 1, "EndedEarly"),
        (left(said=STOPPED), "canceled", 0, "Stopped"),
        (left(143, said=STOPPED), "canceled", 143, "Stopped"),
        (left(said=STOPPED, stop=CANCEL), "canceled", 0, "Canceled"),
        (left(said=STOPPED, stop=signal_stop(15)), "canceled", 143, "Signal"),
        (left(-15, spoke=False, stop=signal_stop(2)), "canceled", 130, "Signal"),
        (left(said=STOPPED, stop=deadline_stop(60)), "deadline_exceeded", 124, "DeadlineExceeded"),
        (left(1), "failed", 1, "Error"),
        (left(2), "failed", 2, "BadConfig"),
        (left(3), "failed", 3, "Diverged"),
        (left(3, said={"failing": {"reason": "NaNLoss", "message": "m"}}), "failed", 3, "NaNLoss"),
        (left(1, said={"failing": {"reason": "not a word!", "message": None}}), "failed", 1, "Error"),
        (left(1, said={"failing": {"reason": "Größe", "message": "m"}}), "failed", 1, "Error"),
        (left(1, said={"failing": {"reason": "_Own", "message": "m"}}), "failed", 1, "Error"),
        (left(1, said=FINISHED), "completed", 0, "Completed"),
        (left(-11, said=FINISHED), "completed", 0, "Completed"),
        (left(-9, said=FINISHED, stop=CANCEL, forced=True), "completed", 0, "Completed"),
        (left(1, said=FINISHED | {"failing": {"reason": "DiskFull", "message": "m"}}), "failed", 1, "DiskFull"),
        (left(-9), "failed", 137, "Killed"),
        (left(-9, ran_out_of_memory=True), "failed", 137, "OOMKilled"),
        (left(-11), "failed", 139, "Killed"),
        (left(-64), "failed", 192, "Killed"),
    ],
)
def test_every_way_to_leave(exited: Exit, outcome: str, code: int, reason: str) -> None:
    ending = judge(exited)
    assert (ending.outcome, ending.exit_code, ending.reason) == (outcome, code, reason)
    TerminationRecord(run_id="r", outcome=ending.outcome, exit_code=ending.exit_code, reason=ending.reason)
    assert ending.message


def test_messages_say_what_happened() -> None:
    assert "last words" in judge(left(1)).message
    assert "signal 9 (SIGKILL)" in judge(left(-9)).message
    assert judge(left(-9)).signal == 9
    assert "without confirming a checkpoint" in judge(left(stop=CANCEL)).message
    assert "was killed" in judge(left(-9, stop=CANCEL, forced=True)).message
    assert "2 minutes" in judge(left(said=STOPPED, stop=deadline_stop(120))).message
