"""The cache: the newest version wins, namespaces never mix, and a pod's last words are kept."""

from __future__ import annotations

from typing import Any

from cleanrl_operator.cache import Cache
from cleanrl_operator.run import RUN_UID_LABEL


def run(version: int, uid: str = "u1", pod_uid: str = "", state: str = "INIT", name: str = "run") -> dict[str, Any]:
    metadata = {"namespace": "a", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {"podUID": pod_uid, "fsmState": state}}


def pod(version: int, namespace: str = "a", uid: str = "p1", run_uid: str = "u1", **status: Any) -> dict[str, Any]:
    labels = {RUN_UID_LABEL: run_uid}
    metadata = {"namespace": namespace, "name": "pod", "uid": uid, "resourceVersion": str(version), "labels": labels}
    metadata["annotations"] = {"large": "x" * 1000}
    return {"metadata": metadata, "spec": {"nodeName": "n", "containers": ["large"]}, "status": status}


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = Cache()
    cache.put_run(run(5, state="EXEC"))
    cache.put_run(run(3, state="HSHK"))
    assert cache.run(("a", "run"))["status"]["fsmState"] == "EXEC"
    assert {state: count for state, count in cache.states.items() if count} == {("EXEC", ""): 1}


def test_runs_of_another_installation_are_known_and_not_counted() -> None:
    def counted(cache: Cache) -> dict[tuple[str, str], int]:
        return {state: count for state, count in cache.states.items() if count}

    caches = {name: Cache(name) for name in ("", "blue")}
    theirs = {**run(1, name="theirs", uid="u2", state="EXEC"), "spec": {"operatorClass": "blue"}}
    for cache in caches.values():
        cache.put_run(run(1))
        cache.put_run(theirs)
        assert {key[1] for key, _ in cache.runs()} == {"run", "theirs"}, "a run may start from one of theirs"
    assert [key for key, _ in caches[""].handled()] == [("a", "run")]
    assert [key for key, _ in caches["blue"].handled()] == [("a", "theirs")]
    assert (counted(caches[""]), counted(caches["blue"])) == ({("INIT", ""): 1}, {("EXEC", ""): 1})
    for cache in caches.values():
        cache.drop_run(theirs)
    assert (counted(caches[""]), counted(caches["blue"])) == ({("INIT", ""): 1}, {})


def test_a_run_is_found_by_its_pod_only_while_its_status_names_it() -> None:
    cache = Cache()
    cache.put_run(run(1, pod_uid="p1"))
    assert cache.run_of_pod("p1") is not None
    cache.put_run(run(2, pod_uid="p2"))
    assert cache.run_of_pod("p1") is None
    assert cache.run_of_pod("p2") is not None
    cache.drop_run(run(3, pod_uid="p2"))
    assert cache.run_of_pod("p2") is None
    assert cache.run_of_pod("") is None


def test_a_new_run_of_the_same_name_survives_the_old_ones_deletion() -> None:
    cache = Cache()
    cache.put_run(run(1, uid="old"))
    cache.put_run(run(5, uid="new"))
    cache.drop_run(run(4, uid="old"))
    assert cache.run(("a", "run"))["metadata"]["uid"] == "new"
    assert cache.run_by_uid("old") is None


def test_a_label_forged_in_another_namespace_reaches_no_run() -> None:
    cache = Cache()
    cache.put_run(run(1))
    assert cache.put_pod(pod(1, phase="Running")) == ("a", "run")
    assert cache.put_pod(pod(9, namespace="b", uid="evil", phase="Failed")) is None
    assert cache.pod("a", "u1", "pod")["status"] == {"phase": "Running"}
    assert cache.drop_pod(pod(10, namespace="b", uid="p1")) is None
    assert cache.pod("a", "u1", "pod") is not None
    assert cache.departed("a", "u1", "p1") is None


def test_the_last_words_of_a_pod_are_kept_until_nobody_needs_them() -> None:
    cache = Cache()
    cache.put_run(run(1))
    cache.put_pod(pod(1, phase="Running"))
    assert cache.drop_pod(pod(2, phase="Failed")) == ("a", "run")
    assert cache.pod("a", "u1", "pod") is None
    assert cache.departed("a", "u1", "p1")["status"] == {"phase": "Failed"}
    assert cache.departed("a", "u1", "other") is None
    cache.forget_departed("a", "u1")
    assert cache.departed("a", "u1", "p1") is None


def test_only_what_is_read_is_kept() -> None:
    cache = Cache()
    cache.put_pod(pod(1))
    (kept,) = cache.all_pods()
    assert "annotations" not in kept["metadata"]
    assert kept["spec"] == {"nodeName": "n"}
