"""Pods as the API server shows them -> facts. Pure: what has to be asked live is asked by `reconcile`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cleanrl_operator.desired import sidecar
from cleanrl_operator.desired.requirements import REQUIREMENTS
from cleanrl_operator.desired.tensorboard import TENSORBOARD
from cleanrl_operator.facts import EndReason, PodFacts, PodSituation, WorkerEnd
from cleanrl_operator.run import ATTEMPT_LABEL, Run
from cleanrl_protocol.record import BadRecord, TerminationRecord, parse

INSTALLER_TAIL = 2000
"""Characters of what an installer said last that a status keeps."""
BACK_OFF = "CrashLoopBackOff"
"""Of our sidecar, which alone is started again and again. The worker's turn comes when it runs: until then it holds all up."""
IMAGE_TROUBLE = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerError",
        "RunContainerError",
        BACK_OFF,
    }
)
OVER_ITS_LIMIT = re.compile(r"exceed(s|ed) (the|its) (total |local ephemeral storage )?limit")
"""In the kubelet's words, when it evicts a pod for what that has written. Where the node is short it speaks of the node."""
NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})
"""What the runtimes call the end of a container whose program could not be started; its message is theirs."""
DIGEST = re.compile(r"[0-9a-f]{64}")
PREEMPTORS = frozenset({"PreemptionByScheduler", "WorkloadEvictedDueToPreempted"})
COLLECTED = "DeletionByPodGC"
"""Of a pod whose node is not there any more."""


def observe_pod(run: Run, pod: Mapping[str, Any]) -> PodFacts:
    """What this pod says about the run's current attempt."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata["uid"] != run.status.pod_uid and not is_ours(run, pod):
        return PodFacts(situation=PodSituation.FOREIGN, message=f"pod {metadata['name']} belongs to somebody else")
    created = _time(metadata.get("creationTimestamp"))
    common: dict[str, Any] = {
        "uid": metadata["uid"],
        "node_name": (pod.get("spec") or {}).get("nodeName"),
        "deleting": "deletionTimestamp" in metadata,
        "disrupted": disruption(status),
        "tensorboard_ready": bool(_init_container(status, TENSORBOARD).get("ready")),
    }
    containers: list[dict[str, Any]] = status.get("containerStatuses") or []
    worker = next((container for container in containers if container.get("name") == "worker"), {})
    state = worker.get("state") or {}
    if "terminated" in state:
        end = worker_end(run, state["terminated"])
        return PodFacts(situation=PodSituation.ENDED, since=end.finished_at or created, end=end, **common)
    if failed := failed_installation(status):
        return PodFacts(situation=PodSituation.ENDED, since=created, end=failed, **common)
    if status.get("phase") in ("Failed", "Succeeded"):
        said = str(status.get("message") or failed_before_the_worker(status))
        end = WorkerEnd(exit_code=1, kubelet_reason=status.get("reason", ""), message=said)
        if status["phase"] == "Failed" and not containers:
            why = f"The node did not take the pod ({status.get('reason') or 'it did not say why'}): {said}"
            end = WorkerEnd(exit_code=1, reason=EndReason.REJECTED, message=said if common["disrupted"] else why)
        return PodFacts(situation=PodSituation.ENDED, since=created, end=end, **common)
    if "running" in state:
        since = _time(state["running"].get("startedAt")) or created
        return PodFacts(situation=PodSituation.RUNNING, since=since, **common)
    if (pod.get("spec") or {}).get("schedulingGates"):
        return PodFacts(situation=PodSituation.GATED, since=created, **common)
    trouble = image_trouble(status)
    if trouble:
        since = max(filter(None, (scheduled_at(status), installed_at(status))), default=created)
        return PodFacts(situation=PodSituation.IMAGE_ERROR, since=since, message=trouble, **common)
    waiting = (state.get("waiting") or {}).get("message") or ""
    return PodFacts(
        situation=PodSituation.PENDING, since=created, unschedulable=unschedulable(status), message=waiting, **common
    )


def observe_departed(run: Run, pod: Mapping[str, Any]) -> PodFacts:
    """What the last words of a pod say that is gone: its end, or at least who ended it."""
    facts = observe_pod(run, pod)
    if facts.situation is PodSituation.ENDED:
        return facts
    since = _time(pod["metadata"].get("deletionTimestamp"))
    return PodFacts(situation=PodSituation.GONE, since=since, disrupted=facts.disrupted, node_name=facts.node_name)


def may_still_write(pod: Mapping[str, Any]) -> bool:
    """Whether some container of the pod may be alive."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def left_behind_since(pod: Mapping[str, Any]) -> datetime | None:
    """Since when the pod goes on without its worker, and nobody has asked it to go; None when that is not so."""
    if not may_still_write(pod) or "deletionTimestamp" in pod["metadata"]:
        return None
    containers: list[dict[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or []
    worker = next((container for container in containers if container.get("name") == "worker"), {})
    return _time(((worker.get("state") or {}).get("terminated") or {}).get("finishedAt"))


def is_ours(run: Run, pod: Mapping[str, Any]) -> bool:
    """Whether the pod is this run's, by controller UID and attempt: its name alone proves nothing."""
    metadata = pod["metadata"]
    attempt = (metadata.get("labels") or {}).get(ATTEMPT_LABEL)
    return is_owned(run, pod) and attempt == str(run.next_attempt)


def is_owned(run: Run, pod: Mapping[str, Any]) -> bool:
    """Whether the pod was made for this run, in whatever attempt."""
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences") or []
    owned = any(owner.get("uid") == run.uid and owner.get("controller") for owner in owners)
    return owned and metadata["namespace"] == run.namespace


def worker_end(run: Run, terminated: Mapping[str, Any]) -> WorkerEnd:
    """The end of the worker container, with the record that it left if that can be believed."""
    exit_code = int(terminated.get("exitCode", 1))
    if terminated.get("reason") in NEVER_RAN:
        why = str(terminated.get("message") or "the worker's program could not be started")
        finished = _time(terminated.get("finishedAt"))
        return WorkerEnd(exit_code=exit_code, finished_at=finished, reason=EndReason.IMAGE, message=why)
    seen: dict[str, Any] = {
        "exit_code": exit_code,
        "kubelet_reason": terminated.get("reason", ""),
        "ran_at": _time(terminated.get("startedAt")),
        "finished_at": _time(terminated.get("finishedAt")),
    }
    try:
        record = parse(terminated.get("message") or "", run_id=run.run_id, attempt=run.next_attempt)
    except BadRecord as error:
        what = f"The worker ended with exit code {exit_code}, and {error}. What it printed is in its logs."
        return WorkerEnd(**seen, message=what)
    return WorkerEnd(**seen, **from_record(record))


def failed_installation(status: Mapping[str, Any]) -> WorkerEnd | None:
    """The end of a pod whose requirement sets could not be installed; None for every other pod."""
    end = (_init_container(status, REQUIREMENTS).get("state") or {}).get("terminated") or {}
    if not end or not end.get("exitCode"):
        return None
    said = "".join(letter if letter.isprintable() else " " for letter in str(end.get("message") or "")).strip()
    why = said[-INSTALLER_TAIL:] or f"the init container ended with exit code {end['exitCode']} and said nothing"
    return WorkerEnd(
        exit_code=int(end["exitCode"]),
        kubelet_reason=end.get("reason", ""),
        finished_at=_time(end.get("finishedAt")),
        reason=EndReason.DEPENDENCIES,
        message=f"Requirement sets could not be installed: {why}",
    )


def failed_before_the_worker(status: Mapping[str, Any]) -> str:
    """The sentence for an init container that failed, one that something has injected; empty when none did."""
    for container in status.get("initContainerStatuses") or []:
        end = (container.get("state") or {}).get("terminated") or {}
        if end.get("exitCode") and container.get("name") not in sidecar.NAMES:
            said = str(end.get("message") or end.get("reason") or "it said nothing")
            name = container.get("name")
            return f"The worker never ran: init container {name} ended with exit code {end['exitCode']} ({said})."
    return ""


def installed_at(status: Mapping[str, Any]) -> datetime | None:
    """When the requirement sets were installed; before that no other container is started."""
    end = (_init_container(status, REQUIREMENTS).get("state") or {}).get("terminated") or {}
    return _time(end.get("finishedAt"))


def from_record(record: TerminationRecord) -> dict[str, Any]:
    """The record's fields under the names of `WorkerEnd`."""
    entered = {
        transition.state: datetime.fromtimestamp(transition.at, UTC) for transition in reversed(record.transitions)
    }
    found = record.checkpoint
    return {
        "outcome": record.outcome,
        "reason": record.reason or "",
        "message": record.message,
        "registered_at": entered.get("RDY"),
        "started_at": entered.get("EXEC"),
        "last_event": record.last_event,
        "step": record.last_step or 0,
        "checkpoint_path": found.path if found else None,
        "checkpoint_step": found.step if found else 0,
        "checkpoint_sha256": found.sha256 if found else None,
        "manifest_digest": record.manifest_sha256,
        "wandb_url": record.wandb_url,
    }


def finished_manifest(pod: Mapping[str, Any]) -> str | None:
    """The digest of the manifest that the sidecar has finished for a worker that could not; None when it had not to."""
    status = pod.get("status") or {}
    found = next(filter(None, (_init_container(status, name) for name in sidecar.NAMES)), {})
    end = (found.get("state") or {}).get("terminated") or {}
    try:
        digest = json.loads(str(end.get("message") or "{}")).get("manifestSha256")
    except (ValueError, AttributeError, RecursionError):
        return None
    return digest if isinstance(digest, str) and DIGEST.fullmatch(digest) else None


def _init_container(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    containers: list[dict[str, Any]] = status.get("initContainerStatuses") or []
    return next((container for container in containers if container.get("name") == name), {})


def disruption(status: Mapping[str, Any]) -> EndReason | None:
    """Whether the cluster, not the worker, ended the pod."""
    if status.get("reason") == "Evicted":
        own_doing = OVER_ITS_LIMIT.search(str(status.get("message") or ""))
        return EndReason.SCRATCH if own_doing else EndReason.EVICTED
    if status.get("reason") in ("NodeLost", "NodeShutdown", "Terminated"):
        return EndReason.NODE_LOST
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            if condition.get("reason") == COLLECTED:
                return EndReason.NODE_LOST
            return EndReason.PREEMPTED if condition.get("reason") in PREEMPTORS else EndReason.EVICTED
        if condition.get("type") == "TerminationTarget" and condition.get("status") == "True":
            return EndReason.PREEMPTED
    return None


def image_trouble(status: Mapping[str, Any]) -> str:
    """The kubelet's sentence about an image that can't be had or started, of any container; empty when there is none."""
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in IMAGE_TROUBLE:
            continue
        last = (container.get("lastState") or {}).get("terminated") or {}
        why = last.get("message") if waiting["reason"] == BACK_OFF else ""
        return str(why or waiting.get("message") or waiting["reason"])
    return ""


def unschedulable(status: Mapping[str, Any]) -> str:
    """The scheduler's sentence when it found no place; empty when it did, or has not tried."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "no node fits")
    return ""


def scheduled_at(status: Mapping[str, Any]) -> datetime | None:
    """When the pod got its node; before that nobody tries to pull its images."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return _time(condition.get("lastTransitionTime"))
    return None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
