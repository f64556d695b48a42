"""What the watches have shown: runs by key, pods by the run they belong to.

Our own writes are put in as soon as they are answered, so that the next reconcile does not act on what it has changed itself.
A watch may deliver an older version after that; versions of one object are ordered, and the newest wins.

Bodies are kept slim: of ten thousand runs and their pods only what reconcile reads is worth its memory.

A pod is filed under its own namespace and the run's UID that its label claims: a label can be forged, and what is filed in one
namespace can never be found from another.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cleanrl_operator.run import DRY_RUN_ANNOTATION, RUN_UID_LABEL, class_of

Key = tuple[str, str]
Body = Mapping[str, Any]
Home = tuple[str, str]
"""Namespace and the run's UID."""


class Cache:
    """Runs and their pods. Not a source of truth about absence: ask the API server for that."""

    def __init__(self, operator_class: str = "") -> None:
        """`operator_class`: the class of the runs that are looked after; a cluster may hold those of other installations."""
        self._class = operator_class
        self._runs: dict[Key, Body] = {}
        self._pods: dict[Home, dict[str, Body]] = {}
        self._departed: dict[Home, Body] = {}
        self._keys_by_uid: dict[str, Key] = {}
        self._keys_by_pod: dict[str, Key] = {}
        self._keys_by_id: dict[tuple[str, str], Key] = {}
        self._unseen: set[str] = set()
        self.states: Counter[tuple[str, str]] = Counter()
        """How many runs that are looked after are in which state with which outcome."""

    def run(self, key: Key) -> Body | None:
        """The newest known version of a run."""
        return self._runs.get(key)

    def runs(self) -> Iterator[tuple[Key, Body]]:
        """All known runs."""
        return iter(list(self._runs.items()))

    def handled(self) -> Iterator[tuple[Key, Body]]:
        """All known runs that are looked after."""
        return ((key, body) for key, body in self.runs() if class_of(body) == self._class)

    def __len__(self) -> int:
        return len(self._runs)

    def run_of_pod(self, pod_uid: str) -> Body | None:
        """The run whose `status.podUID` this is."""
        key = self._keys_by_pod.get(pod_uid)
        return self._runs.get(key) if key is not None else None

    def run_by_uid(self, run_uid: str) -> Body | None:
        """The run with this UID, if it is known."""
        key = self._keys_by_uid.get(run_uid)
        return self._runs.get(key) if key is not None else None

    def run_by_id(self, namespace: str, run_id: str) -> Body | None:
        """The run of this namespace whose `status.runId` this is."""
        key = self._keys_by_id.get((namespace, run_id))
        return self._runs.get(key) if key is not None else None

    def pod(self, namespace: str, run_uid: str, name: str) -> Body | None:
        """The newest known version of a run's pod."""
        return self._pods.get((namespace, run_uid), {}).get(name)

    def pods(self, namespace: str, run_uid: str) -> list[Body]:
        """All known pods of a run."""
        return list(self._pods.get((namespace, run_uid), {}).values())

    def all_pods(self, namespace: str | None = None) -> Iterator[Body]:
        """All known pods, or those of a namespace."""
        homes = list(self._pods.items())
        return iter([body for home, pods in homes if namespace in (None, home[0]) for body in pods.values()])

    def departed(self, namespace: str, run_uid: str, pod_uid: str) -> Body | None:
        """The last version of a pod that was seen to go."""
        body = self._departed.get((namespace, run_uid))
        return body if body is not None and body["metadata"]["uid"] == pod_uid else None

    def forget_departed(self, namespace: str, run_uid: str) -> None:
        """Nobody will ask for the run's last pod any more."""
        self._departed.pop((namespace, run_uid), None)

    def put_run(self, body: Body) -> Key | None:
        """Take over a run's version; its key, or None when this version or a newer one was known already."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = self._runs.get(key)
        if known is not None and known["metadata"]["uid"] == metadata["uid"] and not _newer(body, known):
            return None
        self._file(key, known, _slim_run(body, known))
        return key

    def drop_run(self, body: Body) -> Key:
        """Forget a run that was deleted, unless another one has its name by now."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = self._runs.get(key)
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            self._file(key, known, None)
        self._departed.pop((metadata["namespace"], metadata["uid"]), None)
        return key

    def put_created_pod(self, body: Body) -> None:
        """Take over a pod that was created just now."""
        if self.put_pod(body) is not None:  # else the watch was quicker than the answer
            self._unseen.add(body["metadata"]["uid"])

    @property
    def unseen(self) -> int:
        """How many pods were created that the watch has not shown yet: so far the API server is behind with its news."""
        return len(self._unseen)

    def pod_seen(self, body: Body) -> Key | None:
        """The watch has shown a pod: `put_pod`."""
        self._unseen.discard(body["metadata"]["uid"])
        return self.put_pod(body)

    def put_pod(self, body: Body) -> Key | None:
        """Take over a pod's version; the key of its run, or None when that is not known, or the pod's version was."""
        home = _home(body)
        if home is None:
            return None
        metadata = body["metadata"]
        pods = self._pods.setdefault(home, {})
        known = pods.get(metadata["name"])
        if known is not None and known["metadata"]["uid"] == metadata["uid"] and not _newer(body, known):
            return None
        pods[metadata["name"]] = _slim_pod(body)
        return self._key_at(home)

    def drop_pod(self, body: Body) -> Key | None:
        """Forget a pod that was deleted, but for its last words; the key of its run, if the run is known."""
        home = _home(body)
        if home is None:
            return None
        metadata = body["metadata"]
        self._unseen.discard(metadata["uid"])
        pods = self._pods.get(home, {})
        known = pods.get(metadata["name"])
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            del pods[metadata["name"]]
        if not pods:
            self._pods.pop(home, None)
        key = self._key_at(home)
        if key is not None:
            self._departed[home] = _slim_pod(body)
        return key

    def _key_at(self, home: Home) -> Key | None:
        key = self._keys_by_uid.get(home[1])
        return key if key is not None and key[0] == home[0] else None

    def _file(self, key: Key, before: Body | None, after: Body | None) -> None:
        """Replace a run's version and everything that is looked up by it."""
        if before is not None:
            self._keys_by_uid.pop(before["metadata"]["uid"], None)
            self._keys_by_pod.pop(_pod_uid(before), None)
            self._keys_by_id.pop((key[0], _run_id(before)), None)
            self.states[_state(before)] -= class_of(before) == self._class
            del self._runs[key]
        if after is not None:
            self._runs[key] = after
            self._keys_by_uid[after["metadata"]["uid"]] = key
            if pod_uid := _pod_uid(after):
                self._keys_by_pod[pod_uid] = key
            if run_id := _run_id(after):
                self._keys_by_id[key[0], run_id] = key
            self.states[_state(after)] += class_of(after) == self._class


METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "ownerReferences",
)
SHORT_TEXT = 64
POD_SPEC = ("nodeName", "schedulingGates")
POD_STATUS = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")


def _slim_run(body: Body, known: Body | None) -> Body:
    """What is kept of a run; its spec as it is known, if this is another version of the same generation."""
    return {
        "metadata": _shared(_only(body["metadata"], METADATA) | _annotations(body)),
        "spec": known["spec"]
        if known is not None and _made_by(known) == _made_by(body)
        else _shared(body.get("spec") or {}),
        "status": _shared(body.get("status") or {}),
    }


def _made_by(body: Body) -> tuple[str, int | None]:
    """What changes whenever a run's spec does."""
    return body["metadata"]["uid"], body["metadata"].get("generation")


def _shared(value: Any) -> Any:
    """A copy whose names and short texts are the same objects in all runs: half the memory of what the parser made."""
    if isinstance(value, dict):
        return {sys.intern(name): _shared(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_shared(part) for part in value]
    return sys.intern(value) if type(value) is str and len(value) <= SHORT_TEXT else value


def _annotations(body: Body) -> dict[str, Any]:
    """Of a run's annotations the one that we read: `kubectl apply` keeps the whole manifest in another."""
    given = _only(body["metadata"].get("annotations") or {}, (DRY_RUN_ANNOTATION,))
    return {"annotations": given} if given else {}


def _slim_pod(body: Body) -> Body:
    return {
        "metadata": _only(body["metadata"], METADATA),
        "spec": _only(body.get("spec") or {}, POD_SPEC),
        "status": _only(body.get("status") or {}, POD_STATUS),
    }


def _only(part: Body, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: part[name] for name in names if name in part}


def _home(body: Body) -> Home | None:
    metadata = body["metadata"]
    run_uid = (metadata.get("labels") or {}).get(RUN_UID_LABEL)
    return (metadata["namespace"], run_uid) if run_uid else None


def _pod_uid(body: Body) -> str:
    return str((body.get("status") or {}).get("podUID") or "")


def _run_id(body: Body) -> str:
    return str((body.get("status") or {}).get("runId") or "")


def _state(body: Body) -> tuple[str, str]:
    status = body.get("status") or {}
    return str(status.get("fsmState") or ""), str(status.get("outcome") or "")


def _newer(body: Body, known: Body) -> bool:
    try:
        return int(body["metadata"]["resourceVersion"]) > int(known["metadata"]["resourceVersion"])
    except ValueError:
        return True
