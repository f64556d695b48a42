"""A worker's outbox and a gateway's ledger, cut apart at any moment: all arrives once, and nothing goes round for ever."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cleanrl_protocol.credits import CreditBalance
from cleanrl_protocol.ledger import Arrival, Ledger
from cleanrl_protocol.outbox import Outbox

EPOCH = 7_000_000


class Pair:
    """Both ends of a session, and what is on its way between them."""

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.outbox = Outbox(lambda: iter(list(self.log)), capacity=3)
        self.credits = CreditBalance()
        self.judged = 0
        self.ledger = Ledger()
        self.learnt: list[int] = []
        self.judged = self.stored = 0
        self.connect()

    def connect(self) -> None:
        self.outbox.rewind(self.ledger.register(self.outbox.last, self.outbox.epoch))
        self.credits.reset(2)
        self.cut = False

    def write(self, name: str) -> None:
        event = {"event": name, "seq": len(self.log) + 1, "timestamp": 7.0, "payload": {}}
        self.log.append(event)
        self.outbox.add(event)

    def send(self) -> bool:
        """One event goes up; False when there is nothing that may."""
        outgoing = None if self.cut else self.outbox.take(self.credits.spend)
        if outgoing is None:
            return False
        number, name = outgoing.event["seq"], outgoing.event["event"]
        arrival = self.ledger.receive(
            number, outgoing.after, epoch=EPOCH, scalars=name == "scalars", hold=name == "checkpoint_saved"
        )
        if arrival is Arrival.NEW:
            self.learnt.append(number)
        self.cut = arrival is Arrival.GAP
        return True

    def judge(self) -> None:
        """What has arrived goes into a status."""
        self.judged = self.ledger.received

    def store(self) -> None:
        """That status is written, however much later."""
        self.stored = max(self.stored, self.judged)
        self.outbox.forget(self.ledger.commit(self.judged))

    def restart(self) -> None:
        """Another gateway takes over, with what the status says."""
        self.judged = 0
        self.ledger = Ledger(acknowledged=self.stored, epoch=EPOCH if self.stored else 0)
        self.connect()


ACTIONS = ["heartbeat", "scalars", "checkpoint_saved", "send", "send", "judge", "store", "cut", "restart", "credit"]
AGAIN = [
    "checkpoint_saved",
    "scalars",
    "scalars",
    "send",
    "send",
    "send",
    "judge",
    "cut",
    "store",
    "send",
    "send",
    "restart",
]


@settings(deadline=None, max_examples=500)
@example(AGAIN)  # of figures that arrived twice, the older ones are the last to have been sent
@given(st.lists(st.sampled_from(ACTIONS), max_size=40))
def test_everything_arrives_and_what_came_before_a_cut_holds_nothing_up(actions: list[str]) -> None:
    pair = Pair()
    for action in actions:
        if action == "send":
            pair.send()
        elif action == "judge":
            pair.judge()
        elif action == "store":
            pair.store()
        elif action == "cut":
            pair.connect()
        elif action == "restart":
            pair.restart()
        elif action == "credit":
            pair.credits.grant(1)
        else:
            pair.write(action)
    for _ in range(3):  # the network is well again
        pair.connect()
        while pair.send():
            pair.judge()
            pair.store()
            pair.credits.grant(1)
    assert not pair.cut, "the gateway misses nothing any more"
    assert pair.ledger.acknowledged == len(pair.log)
    numbered = {event["seq"] for event in pair.log if event["event"] != "scalars"}
    assert numbered <= set(pair.learnt)
    figures = [event["seq"] for event in pair.log if event["event"] == "scalars"]
    assert figures[-1:] == [number for number in pair.learnt if number in figures][-1:], "the newest figures win"
