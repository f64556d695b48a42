"""The record: at most 3 KiB whatever happened, and a hostile one is a sentence, not a crash."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanrl_protocol.record import (
    MAX_RECORD_BYTES,
    MAX_TRANSITIONS,
    BadRecord,
    CheckpointRef,
    TerminationRecord,
    Transition,
    dump,
    parse,
)
from cleanrl_worker.record import write_termination_record

RUN = "01JD0000000000000000000000"


def _full(message: str = "") -> TerminationRecord:
    return TerminationRecord(
        run_id="r" * 128,
        attempt=2**31 - 1,
        outcome="deadline_exceeded",
        exit_code=143,
        signal=15,
        reason="R" * 64,
        message=message,
        transitions=[Transition(state="PAUSE", at=1_700_000_000.1234567) for _ in range(MAX_TRANSITIONS)],
        last_event=2**63 - 1,
        last_step=2**63 - 1,
        checkpoint=CheckpointRef(path="\U0001f680" * 256, step=2**63 - 1, sha256="a" * 64),
        manifest_sha256="b" * 64,
    )


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=6000) | st.text(alphabet='"\\\n\x00é\U0001f680', max_size=6000))
def test_any_message_fits_and_can_be_read_back(message: str) -> None:
    for record in (_full(message), TerminationRecord(run_id=RUN, outcome="failed", message=message)):
        data = dump(record)
        assert len(data) <= MAX_RECORD_BYTES
        read = parse(data.decode(), run_id=record.run_id, attempt=record.attempt)
        assert read.model_copy(update={"message": ""}) == record.model_copy(update={"message": ""})


def test_a_short_message_is_kept_whole_and_a_long_one_keeps_both_ends() -> None:
    record = TerminationRecord(run_id=RUN, outcome="failed", message="No module named 'x'.")
    assert parse(dump(record).decode(), run_id=RUN, attempt=1).message == "No module named 'x'."
    long = _full("The sentence. " + "y" * 5000 + " The last line.")
    message = parse(dump(long).decode(), run_id=long.run_id, attempt=long.attempt).message
    assert message.startswith("The sent")
    assert message.endswith("last line.")


def test_names_travel_in_camel_case_and_nothing_is_null() -> None:
    data = json.loads(dump(TerminationRecord(run_id=RUN, outcome="completed", last_event=9)))
    assert data == {
        "version": 1,
        "runId": RUN,
        "attempt": 1,
        "outcome": "completed",
        "message": "",
        "transitions": [],
        "lastEvent": 9,
    }


def _with(**changes: Any) -> str:
    return json.dumps({"version": 1, "runId": RUN, "attempt": 1, "outcome": "completed", **changes})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no termination record"),
        ("  \n", "no termination record"),
        ("Segmentation fault", "not JSON"),
        ("[" * 4000, "not JSON"),
        ("[]", "not a record"),
        ('{"a":', "not JSON"),
        ("x" * 5000, "longer"),
        (_with(version=2), "version"),
        (_with(outcome="succeeded"), "outcome"),
        (_with(runId="other"), "another run"),
        (_with(attempt=2), "another run"),
        (_with(attempt="1"), "attempt"),
        (_with(attempt=True), "attempt"),
        (_with(exitCode=300), "exitCode"),
        (_with(lastEvent=-1), "lastEvent"),
        (_with(lastEvent=2**63), "lastEvent"),
        (_with(reason="bad reason"), "reason"),
        (_with(checkpoint={"path": "/etc/passwd", "step": 1, "sha256": "a" * 64}), "checkpoint"),
        (_with(checkpoint={"path": "a/../../b", "step": 1, "sha256": "a" * 64}), "checkpoint"),
        (_with(checkpoint={"path": "a", "step": 1, "sha256": "A" * 64}), "checkpoint"),
        (_with(manifestSha256="zz"), "manifestSha256"),
        (_with(transitions=[{"state": "EXEC", "at": float("nan")}]), "transitions"),
        (_with(transitions=[{"state": "DONE", "at": 1}]), "transitions"),
        (_with(transitions=[{"state": "EXEC", "at": 1.0}] * 21), "transitions"),
    ],
)
def test_a_bad_record_is_named_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadRecord, match=sentence):
        parse(text, run_id=RUN, attempt=1)


def test_control_characters_do_not_reach_the_status() -> None:
    record = parse(_with(message="a\x1b[31m\nb\x00"), run_id=RUN, attempt=1)
    assert record.message == "a [31m b"


def test_fields_of_a_later_worker_are_ignored() -> None:
    assert parse(_with(color="blue"), run_id=RUN, attempt=1).outcome == "completed"


def test_the_record_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("x" * 5000)
    write_termination_record(path, TerminationRecord(run_id=RUN, outcome="completed"))
    assert parse(path.read_text(), run_id=RUN, attempt=1).outcome == "completed"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "termination-log"
    path.write_text("x" * 5000)
    inode = path.stat().st_ino

    def busy(source: Path, target: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")  # what a mount answers

    monkeypatch.setattr(Path, "replace", busy)
    write_termination_record(path, TerminationRecord(run_id=RUN, outcome="completed"))
    assert path.stat().st_ino == inode
    assert parse(path.read_text(), run_id=RUN, attempt=1).outcome == "completed"
    assert [entry.name for entry in tmp_path.iterdir()] == ["termination-log"]


def test_a_missing_folder_is_an_error_for_the_caller(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_termination_record(tmp_path / "gone" / "record", TerminationRecord(run_id=RUN, outcome="failed"))
