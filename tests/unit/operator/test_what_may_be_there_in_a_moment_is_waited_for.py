"""Refusals of a pod: which end the run, and which only say that somebody applied several things at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import State, Status
from cleanrl_operator.decision import CreatePod, Decision
from cleanrl_operator.facts import Facts, Refusal, RefusalKind
from cleanrl_operator.kube import KubeError
from cleanrl_operator.reconcile import MOST_NOT_YET_SECONDS, _refusal

NOT_YET = [
    'pods is forbidden: User "system:serviceaccount:cleanrl:operator" cannot create resource "pods" in API group ""',
    'persistentvolumeclaims "shared" is forbidden: User "operator" cannot get resource "persistentvolumeclaims" in API group',
    'pods "run-1" is forbidden: error looking up service account ml/default: serviceaccount "default" not found',
    'pods "run-1" is forbidden: status unknown for quota: gpus, resources: requests.cpu',
    'pods "run-1" is forbidden: no PriorityClass with name high was found',
    'pods "run-1" is forbidden: pod rejected: RuntimeClass "gvisor" not found',
]
FINAL = [
    'pods "run-1" is forbidden: violates PodSecurity "restricted:latest": privileged (container "worker" must not ...)',
    'pods "run-1" is forbidden: maximum cpu usage per Container is 1, but limit is 2',
    'admission webhook "no.example.org" denied the request: User "ann" cannot train on Fridays',
    'pods "run-1" is forbidden: failed quota: mem: must specify limits.memory for: worker',
]


@pytest.mark.parametrize("message", NOT_YET)
def test_what_may_be_there_in_a_moment_is_asked_for_again(message: str) -> None:
    answer = _refusal(KubeError(403, "Forbidden", message))
    assert answer is not None
    assert answer.kind is RefusalKind.NOT_YET
    assert answer.message == message


@pytest.mark.parametrize("message", FINAL)
def test_a_policy_is_not_argued_with(message: str) -> None:
    answer = _refusal(KubeError(403, "Forbidden", message))
    assert answer is not None
    assert answer.kind is RefusalKind.POLICY


def test_a_webhook_that_does_not_answer_is_told_and_waited_for() -> None:
    message = (
        'Internal error occurred: failed calling webhook "mpod.kb.io": failed to call webhook: Post '
        '"https://kueue-webhook-service.kueue-system.svc:443/mutate": dial tcp 10.0.0.7:443: connect: connection refused'
    )
    answer = _refusal(KubeError(500, "InternalError", message))
    assert answer is not None
    assert (answer.kind, answer.message) == (RefusalKind.NOT_YET, message)
    assert _refusal(KubeError(0, "NoAnswer", "nobody answers")) is None, "then no status could be written either"


def test_it_is_asked_soon_and_then_less_and_less_often() -> None:
    refusal, pauses = None, []
    for _ in range(8):
        refusal = _refusal(KubeError(403, "Forbidden", NOT_YET[0]), refusal)
        assert refusal is not None
        pauses.append(refusal.retry_seconds)
    assert pauses[0] <= 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_NOT_YET_SECONDS


def test_the_run_waits_in_the_servers_words_and_goes_on(
    make_spec: Callable[..., Spec], judge: Callable[..., Decision]
) -> None:
    status = judge(make_spec(), Status(), Facts()).status
    refused = judge(make_spec(), status, Facts(refusal=Refusal(RefusalKind.NOT_YET, NOT_YET[2], 2.0)))
    assert (refused.status.fsm_state, refused.status.reason) == (State.INIT, "NotAdmittedYet")
    assert (refused.status.message, refused.status.retries) == (NOT_YET[2], 0)
    assert refused.wake_at is not None
    assert judge(make_spec(), refused.status, Facts()).effects == (CreatePod(1),)
