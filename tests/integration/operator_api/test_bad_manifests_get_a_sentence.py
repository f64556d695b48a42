"""Every rule of the CRD, on a real API server: a bad manifest is refused with a sentence that says what to write."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cleanrl_operator.api import GROUP, KIND, PLURAL, VERSION
from cleanrl_operator.api.crd import build
from cleanrl_operator.api.spec import MUTABLE, MUTABLE_WHILE_SUSPENDED, Spec

from devcluster import Cluster

PROJECT = Path(__file__).parents[3]
GOOD: dict[str, Any] = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000}
VOLUME = {"name": "data", "mountPath": "/mnt/data", "emptyDir": {}}


@pytest.fixture(scope="module")
def server(api_server: Cluster) -> Iterator[Cluster]:
    api_server.kubectl("apply", "-f", str(PROJECT / "crds"))
    deadline = time.monotonic() + 30
    while api_server.kubectl("get", PLURAL, check=False).returncode != 0:
        assert time.monotonic() < deadline, "the API server did not take the CRD up"
        time.sleep(0.2)
    api_server.kubectl("create", "namespace", "rules")
    yield api_server
    api_server.kubectl("delete", "namespace", "rules", "--wait=false")


def apply(server: Cluster, spec: dict[str, Any], name: str = "run", dry: bool = True) -> str:
    """What kubectl prints, on standard output or on standard error."""
    manifest = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "spec": spec}
    flags = ["--dry-run=server"] if dry else []
    result = server.kubectl("apply", "-n", "rules", "-f", "-", *flags, stdin=json.dumps(manifest), check=False)
    return str(result.stdout + result.stderr)


def changed(**fields: Any) -> dict[str, Any]:
    spec = copy.deepcopy(GOOD)
    spec.update(fields)
    return {name: value for name, value in spec.items() if value is not ...}


REFUSED = {
    "no algorithm of the registry": changed(algo="pppo"),
    "How long should it train": changed(totalTimesteps=...),
    "mode: curriculum and the field curriculum": changed(mode="curriculum"),
    "mode: script and the field script": changed(mode="script", totalTimesteps=...),
    "start from something": changed(mode="resume"),
    "evaluation belongs to mode: policyEval": changed(evaluation={"episodes": 5}),
    "either a preset or a schedule": changed(mode="curriculum", curriculum={}),
    "either an earlier run or a path": changed(mode="resume", **{"from": {"run": "a", "path": "b"}}),
    "a path stays inside the claim": changed(mode="resume", **{"from": {"path": "a/../../b"}}),
    "a key does not belong in a manifest": changed(extras={"wandb_api_key": "hunter2"}),
    "mandatory asks for a GPU": changed(resources={"gpus": {"mandatory": True}}),
    "write a number of CPUs": changed(resources={"cpus": {"requested": "many"}}),
    "claimName names a claim that exists": changed(artifacts={"storage": {"claimName": "c", "size": "1Gi"}}),
    "is never deleted with a run": changed(artifacts={"storage": {"claimName": "c", "deletionPolicy": "Delete"}}),
    "a key is given and tracking is off": changed(artifacts={"wandb": {"apiKeySecretRef": {"name": "w"}}}),
    "serve: always needs TensorBoard logs": changed(artifacts={"tensorboard": {"enabled": False, "serve": "always"}}),
    "name either a ConfigMap that holds the script": changed(mode="script", script={}),
    "either a ConfigMap that holds the script or a path": changed(
        mode="script", script={"configMapRef": {"name": "s"}, "path": "/opt/s.sh"}
    ),
    "the script's path without": changed(mode="script", script={"path": "/opt/../s.sh"}),
    "needs a second pod on the claim": changed(
        artifacts={"tensorboard": {"serve": "always"}, "storage": {"accessModes": ["ReadWriteOncePod"]}}
    ),
    "a volume has exactly one kind": changed(podTemplate={"volumes": [{**VOLUME, "configMap": {"name": "c"}}]}),
    "write paths without '..', '//' and '/.'": changed(
        podTemplate={"volumes": [{**VOLUME, "mountPath": "/mnt/../etc"}]}
    ),
    "this path belongs to the system": changed(podTemplate={"volumes": [{**VOLUME, "mountPath": "/proc/x"}]}),
    "two volumes have one name": changed(podTemplate={"volumes": [VOLUME, {**VOLUME, "mountPath": "/mnt/b"}]}),
    "or one mountPath": changed(podTemplate={"volumes": [VOLUME, {**VOLUME, "name": "other"}]}),
    "labels that begin with mosaic.dev/": changed(podTemplate={"labels": {"mosaic.dev/run": "x"}}),
    "annotations that begin with mosaic.dev/": changed(podTemplate={"annotations": {"mosaic.dev/run": "x"}}),
}
BOUNDS = {
    "spec.envId": changed(envId="no spaces allowed"),
    "spec.totalTimesteps": changed(totalTimesteps=0),
    "spec.seed": changed(seed=-1),
    "spec.mode": changed(mode="dream"),
    "spec.script.path": changed(mode="script", script={"path": "relative.sh"}),
    "spec.requirements[0]": changed(requirements=["gpu-drivers"]),
    "spec.resources.memory": changed(resources={"memory": "lots"}),
    "emptyDir.sizeLimit": changed(podTemplate={"volumes": [{**VOLUME, "emptyDir": {"sizeLimit": "1ki"}}]}),
    "spec.checkpoint.everySeconds": changed(checkpoint={"everySeconds": 1}),
    "spec.artifacts.wandb.baseUrl": changed(artifacts={"wandb": {"enabled": True, "baseUrl": "https://user:pw@wandb"}}),
    "spec.artifacts.wandb.proxy.http": changed(artifacts={"wandb": {"proxy": {"http": "http://user:pw@proxy"}}}),
}


def test_a_good_manifest_is_taken(server: Cluster) -> None:
    assert "created" in apply(server, GOOD)
    assert "created" in apply(server, changed(algo="plugin.mine"))
    assert "created" in apply(server, changed(mode="script", totalTimesteps=..., script={"path": "/opt/goto.sh"}))
    assert "created" in apply(server, changed(dryRun=True, artifacts={"tensorboard": {"serve": "always"}}))
    assert "created" in apply(server, changed(algo="cleanrl.ppo", resources={"cpus": {"requested": "500m"}}))
    assert "created" in apply(server, changed(resources={"memory": "4194304Ki"}))


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_rule_says_what_to_write_instead(server: Cluster, sentence: str) -> None:
    answer = apply(server, REFUSED[sentence])
    assert "is invalid" in answer
    assert sentence.lower() in answer.lower()


@pytest.mark.parametrize("field", BOUNDS)
def test_a_bound_names_its_field(server: Cluster, field: str) -> None:
    answer = apply(server, BOUNDS[field])
    assert "is invalid" in answer
    assert field in answer


def test_a_long_name_is_refused(server: Cluster) -> None:
    assert "keep it to 63 characters" in apply(server, GOOD, name="x" * 64)


VALUES: dict[str, Any] = {
    "algo": "dqn",
    "envId": "Acrobot-v1",
    "totalTimesteps": 7,
    "seed": 7,
    "mode": "policyEval",
    "dryRun": True,
    "algoParams": {"learning-rate": 1},
    "extras": {"notes": "x"},
    "curriculum": {"preset": "babyai-goto"},
    "from": {"run": "other"},
    "evaluation": {"episodes": 3},
    "script": {"configMapRef": {"name": "s"}},
    "requirements": ["atari"],
    "artifacts": {"captureVideo": True},
    "fastlane": {"slot": 3},
    "checkpoint": {"keep": 9},
    "operatorClass": "b",
    "image": "other:1",
    "resources": {"memory": "3Gi"},
    "podTemplate": {"schedulerName": "other"},
}


def test_the_list_of_immutable_fields_is_complete() -> None:
    fields = {field.alias or name for name, field in Spec.model_fields.items()}
    assert set(VALUES) == fields - MUTABLE


def test_spec_is_fixed_from_creation(server: Cluster) -> None:
    assert "created" in apply(server, GOOD, name="fixed", dry=False)
    for field, value in VALUES.items():
        answer = apply(server, changed(**{field: value}), name="fixed")
        expected = "only while the run is suspended" if field in MUTABLE_WHILE_SUSPENDED else f"{field} is fixed"
        assert expected in answer, field
    assert "unchanged" in apply(server, GOOD, name="fixed")


RENAMED = {
    "algoParams": ({"learning-rate": 1}, {"gamma": 1}),
    "extras": ({"notes": "x"}, {"optuna_db": "x"}),
    "podTemplate": ({"affinity": {"nodeAffinity": {}}}, {"affinity": {"podAffinity": {}}}),
}


@pytest.mark.parametrize("field", RENAMED)
def test_a_key_of_a_free_map_that_another_takes_the_place_of_is_a_change(server: Cluster, field: str) -> None:
    before, after = RENAMED[field]
    name = f"renamed-{field.lower()}"
    assert "created" in apply(server, changed(**{field: before}), name=name, dry=False)
    expected = "only while the run is suspended" if field in MUTABLE_WHILE_SUSPENDED else f"{field} is fixed"
    assert expected in apply(server, changed(**{field: after}), name=name)
    assert "unchanged" in apply(server, changed(**{field: before}), name=name)


def test_a_free_map_keeps_whatever_is_in_it(server: Cluster) -> None:
    free = {"rate": 2.5e-4, "on": True, "deep": {"a": [1, {"b": "c"}]}, "text": "x"}
    assert "created" in apply(server, changed(algoParams=free, extras=free), name="free", dry=False)
    spec = json.loads(server.kubectl("get", PLURAL, "free", "-n", "rules", "-o", "json").stdout)["spec"]
    assert (spec["algoParams"], spec["extras"]) == (free, free)


def test_an_optional_field_neither_comes_nor_goes_nor_changes(server: Cluster) -> None:
    given = {"operatorClass": "a", "image": "mine:1"}
    assert "created" in apply(server, changed(**given), name="optional", dry=False)
    for field, sentence in (("operatorClass", "operatorClass is fixed"), ("image", "only while the run is suspended")):
        assert sentence in apply(server, changed(**(given | {field: "other"})), name="optional")
        assert sentence in apply(server, changed(**(given | {field: ...})), name="optional")
    assert "unchanged" in apply(server, changed(**given), name="optional")


def test_what_may_change_may_change(server: Cluster) -> None:
    apply(server, GOOD, name="verbs", dry=False)
    for field, value in {
        "suspend": True,
        "pause": True,
        "cancel": True,
        "ttlSecondsAfterFinished": 60,
        "maxWallclockMinutes": 5,
        "pendingDeadlineSeconds": 5,
        "retry": {"limit": 1},
    }.items():
        assert field in MUTABLE
        assert "configured" in apply(server, changed(**{field: value}), name="verbs"), field


def test_resources_change_while_suspended_only(server: Cluster) -> None:
    apply(server, changed(suspend=True), name="asleep", dry=False)
    answer = apply(server, changed(suspend=True, resources={"memory": "3Gi"}, image="other:1"), name="asleep")
    assert "configured" in answer


def test_a_canceled_run_stays_canceled(server: Cluster) -> None:
    apply(server, changed(cancel=True), name="over", dry=False)
    assert "does not come back" in apply(server, changed(cancel=False), name="over")


def test_every_rule_of_the_schema_has_a_case_here() -> None:
    sentences = [sentence.lower() for sentence in REFUSED]
    covered = [
        *sentences,
        "keep it to 63 characters",
        "is fixed when the run",
        "only while the run is",
        "does not come back",
    ]

    def rules(schema: dict[str, Any]) -> Iterator[str]:
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
        for part in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
            if isinstance(part, dict):
                yield from rules(part)

    schema = build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    untested = [message for message in rules(schema) if not any(known in message.lower() for known in covered)]
    assert untested == []


def test_kubectl_explains_every_part(server: Cluster) -> None:
    text = server.kubectl("explain", "cleanrlrun.spec.resources.gpus").stdout
    assert "0 trains on the CPU" in text
    listed = server.kubectl("get", "crr", "-n", "rules").stdout
    assert listed.split("\n")[0].split() == [
        "NAME",
        "STATE",
        "OUTCOME",
        "ALGO",
        "ENV",
        "PROGRESS",
        "RETURN",
        "SPS",
        "AGE",
    ]
