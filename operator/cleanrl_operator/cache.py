"""What the watches have shown: runs by key, pods by the run they belong to.

Our own writes are put in as soon as they are answered, so that the next reconcile does not act on what it has changed itself.
A watch may deliver an older version after that; versions of one object are ordered, and the newest wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cleanrl_operator.run import RUN_UID_LABEL

Key = tuple[str, str]
Body = Mapping[str, Any]


class Cache:
    """Runs and their pods. Not a source of truth about absence: ask the API server for that."""

    def __init__(self) -> None:
        self._runs: dict[Key, Body] = {}
        self._pods: dict[str, dict[str, Body]] = {}
        self._keys_by_uid: dict[str, Key] = {}

    def run(self, key: Key) -> Body | None:
        """The newest known version of a run."""
        return self._runs.get(key)

    def runs(self) -> Iterator[tuple[Key, Body]]:
        """All known runs."""
        return iter(list(self._runs.items()))

    def pod(self, run_uid: str, name: str) -> Body | None:
        """The newest known version of a run's pod."""
        return self._pods.get(run_uid, {}).get(name)

    def pods(self, run_uid: str) -> list[Body]:
        """All known pods of a run."""
        return list(self._pods.get(run_uid, {}).values())

    def key_of(self, run_uid: str) -> Key | None:
        """The key of the run with this UID, if it is known."""
        return self._keys_by_uid.get(run_uid)

    def put_run(self, body: Body) -> Key:
        """Take over a run's version unless a newer one is known."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = self._runs.get(key)
        if known is None or known["metadata"]["uid"] != metadata["uid"] or not _older(body, known):
            if known is not None and known["metadata"]["uid"] != metadata["uid"]:
                self._keys_by_uid.pop(known["metadata"]["uid"], None)
            self._runs[key] = body
            self._keys_by_uid[metadata["uid"]] = key
        return key

    def drop_run(self, body: Body) -> Key:
        """Forget a run that was deleted, unless another one has its name by now."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = self._runs.get(key)
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            del self._runs[key]
        self._keys_by_uid.pop(metadata["uid"], None)
        return key

    def put_pod(self, body: Body) -> Key | None:
        """Take over a pod's version; the key of its run, if the run is known."""
        metadata = body["metadata"]
        run_uid = (metadata.get("labels") or {}).get(RUN_UID_LABEL)
        if run_uid is None:
            return None
        pods = self._pods.setdefault(run_uid, {})
        known = pods.get(metadata["name"])
        if known is None or known["metadata"]["uid"] != metadata["uid"] or not _older(body, known):
            pods[metadata["name"]] = body
        return self._keys_by_uid.get(run_uid)

    def drop_pod(self, body: Body) -> Key | None:
        """Forget a pod that was deleted; the key of its run, if the run is known."""
        metadata = body["metadata"]
        run_uid = (metadata.get("labels") or {}).get(RUN_UID_LABEL)
        if run_uid is None:
            return None
        pods = self._pods.get(run_uid, {})
        known = pods.get(metadata["name"])
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            del pods[metadata["name"]]
        if not pods:
            self._pods.pop(run_uid, None)
        return self._keys_by_uid.get(run_uid)


def _older(body: Body, known: Body) -> bool:
    try:
        return int(body["metadata"]["resourceVersion"]) < int(known["metadata"]["resourceVersion"])
    except ValueError:
        return False
