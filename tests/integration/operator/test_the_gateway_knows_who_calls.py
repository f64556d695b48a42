"""Who may speak for a run: only the pod that its status names. Others are refused, counted, and logged without a token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import jwt
import pytest

from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol import session_pb2_grpc as rpc


class Caller:
    """Somebody with a token, on a channel to the gateway."""

    def __init__(self, lab: Any) -> None:
        credentials = grpc.ssl_channel_credentials(lab.authority())
        self._channel = grpc.secure_channel(f"localhost:{lab.gateway_port}", credentials, limits.CLIENT_OPTIONS)
        self.stub = rpc.SessionServiceStub(self._channel)

    def register(self, run_id: str, token: str | None, **fields: Any) -> pb.RegisterWorkerReply:
        metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        return self.stub.RegisterWorker(
            pb.RegisterWorkerRequest(run_id=run_id, **fields), metadata=metadata, timeout=10
        )

    def refused(self, run_id: str, token: str | None, **fields: Any) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as refusal:
            self.register(run_id, token, **fields)
        return refusal.value.code().name, refusal.value.details()

    def attend(self, session_token: str, messages: Iterable[pb.Up] = ()) -> Iterator[pb.Down]:
        return self.stub.Attend(iter(messages), metadata=((limits.SESSION_METADATA_KEY, session_token),), timeout=30)

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def call(request: pytest.FixtureRequest) -> Callable[[Any], Caller]:
    def connect(lab: Any) -> Caller:
        caller = Caller(lab)
        request.addfinalizer(caller.close)
        return caller

    return connect


@pytest.fixture(scope="module", params=["reviewed by the API server", "by its published keys"])
def gateway(request: pytest.FixtureRequest, make_operator: Any, operator: Any, cluster: Any) -> Any:
    """An operator with cluster-wide rights, and one that has rights in two namespaces only."""
    if request.param == "reviewed by the API server":
        return operator, ""
    names = ["keys-a", "keys-b"]
    for name in names:
        cluster.api().create("/api/v1/namespaces", {"metadata": {"name": name}})
    kubeconfig = request.getfixturevalue("narrow_account")("keys", names)
    made = make_operator("keys", kubeconfig=kubeconfig, namespaces=",".join(names), operator_class="keys")
    return made.start(), "keys"


def test_who_is_refused(gateway: Any, make_lab: Any, call: Any) -> None:
    operator, operator_class = gateway
    names = ("keys-a", "keys-b") if operator_class else (None, None)
    lab, other = (make_lab(operator.gateway_port, name=name, operator_class=operator_class) for name in names)
    for namespace, name in ((lab, "mine"), (lab, "second"), (other, "foreign")):
        namespace.create(name)
        namespace.start_pod(name)
    mine, second, foreign = lab.status("mine"), lab.status("second"), other.status("foreign")
    token = lab.token(mine["podName"], mine["podUID"])
    caller = call(lab)

    assert caller.refused(mine["runId"], None)[0] == "UNAUTHENTICATED"
    assert caller.refused(mine["runId"], "nonsense")[0] == "UNAUTHENTICATED"
    assert caller.refused(mine["runId"], forged(token))[0] == "UNAUTHENTICATED"
    assert caller.refused(mine["runId"], lab.token())[0] == "UNAUTHENTICATED", "a token that is bound to no pod"
    wrong = lab.token(mine["podName"], mine["podUID"], audience="https://kubernetes.default.svc")
    assert caller.refused(mine["runId"], wrong)[0] == "UNAUTHENTICATED", "a token for somebody else"
    stolen = lab.token(second["podName"], second["podUID"])
    assert caller.refused(mine["runId"], stolen)[0] == "PERMISSION_DENIED", "another run's pod"
    abroad = other.token(foreign["podName"], foreign["podUID"])
    assert caller.refused(mine["runId"], abroad)[0] == "PERMISSION_DENIED", "another namespace's pod"
    expired = past(lab, token, seconds=120)
    assert caller.refused(mine["runId"], expired)[0] == "UNAUTHENTICATED", "a token whose time is over"
    assert lab.status("mine")["fsmState"] == "HSHK", "nobody got in"
    assert caller.register(mine["runId"], past(lab, token, seconds=-60)).session_token, "the same one before its end"
    assert caller.register(mine["runId"], token).session_token

    assert operator.metric("cleanrl_gateway_refusals_total") >= 8
    told = operator.log.read_text()
    for secret in (token, wrong, stolen, abroad, expired):
        assert secret not in told
        assert secret.split(".")[2] not in told
    assert [line for line in operator.lines() if line.get("code") == "PERMISSION_DENIED"]


def test_a_pod_whose_time_is_over_is_sent_away_for_good(operator: Any, make_lab: Any, call: Any) -> None:
    lab = make_lab(operator.gateway_port)
    lab.create("run", retry={"limit": 1, "backoffSeconds": 1})
    worker = lab.execute("run")
    old = lab.status("run")
    lab.end_pod("run", exit_code=1, phase="Failed")
    lab.until("run", fsmState="INIT", attempt=2)
    deadline = time.monotonic() + 30
    while worker.session.state.name != "FENCED":
        assert time.monotonic() < deadline, f"its session is {worker.session.state}"
        time.sleep(0.05)
    token = lab.token(old["podName"], old["podUID"])
    caller = call(lab)
    afresh = caller.refused(old["runId"], token, attempt=1)
    assert afresh == ("FAILED_PRECONDITION", "the run is done with this pod"), "whoever held the stream before"
    early = caller.refused(old["runId"], token, attempt=3)
    assert early == ("UNAVAILABLE", "no run knows this pod, yet"), "an attempt that no status speaks of yet"


def test_what_is_sent_again_counts_once_and_what_is_missing_is_asked_for(lab: Any, operator: Any, call: Any) -> None:
    lab.create("run")
    lab.start_pod("run")
    status = lab.status("run")
    token = lab.token(status["podName"], status["podUID"])
    caller = call(lab)
    reply = caller.register(status["runId"], token, last_number=3, log_epoch=5)
    assert (reply.acknowledged, reply.credits) == (0, limits.INITIAL_CREDITS)
    before = operator.metric('cleanrl_gateway_events_total{result="duplicate"}')
    started = lifecycle(1, 0, "run_started")
    stream = caller.attend(reply.session_token, [started, started, lifecycle(3, 2, "note")])
    with pytest.raises(grpc.RpcError) as gap:
        list(stream)
    assert gap.value.code() is grpc.StatusCode.ABORTED
    lab.until("run", fsmState="EXEC")
    assert operator.metric('cleanrl_gateway_events_total{result="duplicate"}') == before + 1
    assert lab.walked("run") == ["INIT", "HSHK", "RDY", "EXEC"]
    again = caller.register(status["runId"], token, last_number=3, log_epoch=5)
    assert again.acknowledged == 1, "what is in the status is not asked for again"

    for bad in ("", "bm90aGluZw==", again.session_token[:-8] + "AAAAAAA="):
        with pytest.raises(grpc.RpcError) as refused:
            list(caller.attend(bad))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_worker_that_reports_is_told_when_the_next_reports_are_due(lab: Any, call: Any) -> None:
    lab.create("run")
    lab.start_pod("run")
    status = lab.status("run")
    caller = call(lab)
    reply = caller.register(status["runId"], lab.token(status["podName"], status["podUID"]), last_number=3, log_epoch=5)
    told = threading.Event()

    def reports() -> Iterator[pb.Up]:
        yield lifecycle(1, 0, "run_started")
        figures = pb.Scalars(step=1)
        yield pb.Up(event=pb.Event(number=2, after=1, timestamp=time.time(), name="scalars", scalars=figures))
        told.wait(20)

    said = caller.attend(reply.session_token, reports())
    pace = next(down.pace for down in said if down.WhichOneof("body") == "pace")
    told.set()
    assert 0 < pace.next_seconds <= 7.5
    assert pace.every_seconds == 5.0


def test_hostile_messages_end_the_stream_and_nothing_else(lab: Any, call: Any) -> None:
    lab.create("run")
    lab.start_pod("run")
    status = lab.status("run")
    token = lab.token(status["podName"], status["podUID"])
    caller = call(lab)
    for message in (
        pb.Up(event=pb.Event(number=1, timestamp=1.0, name="x\n", lifecycle=pb.Lifecycle())),
        pb.Up(event=pb.Event(number=1, timestamp=float("nan"), name="x", lifecycle=pb.Lifecycle())),
        pb.Up(event=pb.Event(number=1, timestamp=1.0, name="x", lifecycle=pb.Lifecycle(payload_json="{" * 10_000))),
    ):
        reply = caller.register(status["runId"], token)
        with pytest.raises(grpc.RpcError) as refused:
            list(caller.attend(reply.session_token, [message]))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    large = pb.RegisterWorkerRequest(run_id=status["runId"], extras_json="x" * (limits.MAX_MESSAGE_BYTES + 1))
    with pytest.raises(grpc.RpcError) as refused:
        caller.stub.RegisterWorker(large, metadata=(("authorization", f"Bearer {token}"),), timeout=10)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    lab.until("run", fsmState="RDY")


def test_the_last_to_register_is_the_worker(lab: Any, call: Any) -> None:
    lab.create("run")
    lab.start_pod("run")
    status = lab.status("run")
    token = lab.token(status["podName"], status["podUID"])
    caller = call(lab)
    hang_up = threading.Event()

    def silence() -> Iterator[pb.Up]:
        hang_up.wait(30)
        yield from ()

    first = caller.attend(caller.register(status["runId"], token).session_token, silence())
    assert next(first).HasField("desired")
    assert caller.register(status["runId"], token).session_token
    with pytest.raises(grpc.RpcError) as ended:
        list(first)
    hang_up.set()
    assert ended.value.code() is grpc.StatusCode.ABORTED


def lifecycle(number: int, after: int, name: str) -> pb.Up:
    body = pb.Lifecycle(payload_json="{}")
    return pb.Up(event=pb.Event(number=number, after=after, timestamp=time.time(), name=name, lifecycle=body))


def past(lab: Any, token: str, seconds: float) -> str:
    """The same claims, signed by the cluster's own key, that ended this long ago: the API server issues none so short."""
    key = (lab.cluster.layout.pki / "service-accounts.key").read_text()
    claims = jwt.decode(token, options={"verify_signature": False})
    claims |= {"exp": int(time.time() - seconds), "iat": int(time.time() - 3600), "nbf": int(time.time() - 3600)}
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": jwt.get_unverified_header(token)["kid"]})


def forged(token: str) -> str:
    """The same claims with another signature."""
    head, claims, signature = token.split(".")
    return ".".join((head, claims, signature[:-6] + ("AAAAAA" if signature[-6:] != "AAAAAA" else "BBBBBB")))
