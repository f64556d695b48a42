"""Encoding never fails, decoding never trusts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.events import BadEvent, decode, encode, epoch_micros, number_of
from cleanrl_protocol.limits import MAX_MESSAGE_BYTES, MAX_NAME, MAX_SCALARS

_TEXT = st.text(st.characters(), max_size=20)  # half surrogate pairs included
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=6,
)
_NAMES = st.sampled_from(["scalars", "heartbeat", "checkpoint_saved", "run_failed"])


@settings(max_examples=50, deadline=None)
@given(
    event=st.fixed_dictionaries(
        {"event": _NAMES | _JSON, "seq": st.integers(1, 9) | _JSON, "payload": _JSON, "timestamp": _JSON}
    ),
    after=st.integers(0, 2**63),
)
def test_any_log_line_becomes_a_message_that_fits(event: dict[str, Any], after: int) -> None:
    message = encode(event, after)
    assert message.ByteSize() < MAX_MESSAGE_BYTES
    if number_of(event):  # one that were refused would be replayed for ever
        assert decode(message).number == event["seq"]
    else:
        with pytest.raises(BadEvent):
            decode(message)


@settings(max_examples=50, deadline=None)
@given(
    name=_NAMES,
    payload=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("step", "total", "sps", "episodes", "values", "path", "sha256", "bytes"), _JSON),
    ),
)
def test_a_well_numbered_line_always_arrives(name: str, payload: dict[str, Any]) -> None:
    received = decode(encode({"event": name, "seq": 4, "payload": payload, "timestamp": 1.5}, 3))
    assert (received.number, received.after, received.name, received.timestamp) == (4, 3, name, 1.5)


def test_lifecycle_payloads_arrive_as_they_were() -> None:
    payload = {"algo": "ppo", "nested": {"a": [1, None, True]}, "text": "é\u2028\ud800"}
    received = decode(encode({"event": "run_started", "seq": 1, "payload": payload, "timestamp": 1.0}, 0))
    assert received.payload == payload


def test_long_payloads_keep_both_ends_of_their_texts_and_say_so() -> None:
    error = "First. " + "x" * 500_000 + " Last."
    event = {"event": "run_failed", "seq": 1, "payload": {"error": error, "code": 3}, "timestamp": 1.0}
    payload = decode(encode(event, 0)).payload
    assert payload["truncated"] is True
    assert payload["code"] == 3
    assert payload["error"].startswith("First. ")
    assert payload["error"].endswith(" Last.")


def test_too_many_figures_and_figures_that_are_none_are_left_out() -> None:
    values: dict[str, Any] = {f"losses/{index}": float(index) for index in range(200)}
    values |= {"text": "no", "none": None, "flag": True}
    event = {"event": "scalars", "seq": 1, "payload": {"step": 1, "values": values}, "timestamp": 1.0}
    assert len(decode(encode(event, 0)).payload["values"]) == MAX_SCALARS


def test_figures_that_are_not_finite_do_not_reach_the_gateways_users() -> None:
    message = pb.Event(number=1, name="scalars", timestamp=1.0)
    message.scalars.steps_per_second = float("inf")
    message.scalars.values["a"] = float("nan")
    message.scalars.values["b"] = 2.0
    payload = decode(message).payload
    assert payload["sps"] == 0.0
    assert payload["values"] == {"b": 2.0}


def _scalars(values: dict[str, float]) -> pb.Event:
    return pb.Event(number=1, name="scalars", timestamp=1.0, scalars=pb.Scalars(values=values))


@pytest.mark.parametrize(
    "message",
    [
        _scalars({f"n{index}": 1.0 for index in range(MAX_SCALARS + 1)}),
        _scalars({"x" * (MAX_NAME + 1): 1.0}),
        _scalars({"": 1.0}),
        _scalars({"a\x1b[31m": 1.0}),
        pb.Event(number=1, name="heartbeat", timestamp=1.0, scalars=pb.Scalars()),
        pb.Event(number=1, name="scalars", timestamp=1.0, lifecycle=pb.Lifecycle()),
        pb.Event(number=2**63, name="note", timestamp=1.0, lifecycle=pb.Lifecycle()),
        pb.Event(number=1, name="note", timestamp=-1.0, lifecycle=pb.Lifecycle()),
    ],
)
def test_what_no_worker_of_ours_sends_is_refused(message: pb.Event) -> None:
    with pytest.raises(BadEvent):
        decode(message)


def test_a_logs_epoch_is_the_same_on_both_sides() -> None:
    timestamp = 1_700_000_000.123456
    received = decode(encode({"event": "note", "seq": 1, "payload": {}, "timestamp": timestamp}, 0))
    assert epoch_micros(received.timestamp) == epoch_micros(timestamp) == 1_700_000_000_123_456
    assert [epoch_micros(value) for value in (float("nan"), -1, "x", None, 1e300)] == [0] * 5
