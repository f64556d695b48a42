"""What the values make, without any cluster."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cleanrl_operator.desired import tensorboard
from cleanrl_operator.gateway.certificates import SECRET_NAME
from cleanrl_operator.run import Run
from cleanrl_operator.settings import ENV_PREFIX, Settings

PROJECT = Path(__file__).parents[3]
Render = Callable[..., list[dict[str, Any]]]


def kinds(objects: list[dict[str, Any]]) -> list[str]:
    return [each["kind"] for each in objects]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(each for each in objects if each["kind"] == kind)


def test_generated_files_are_current() -> None:
    check = [sys.executable, str(PROJECT / "dev" / "chart.py"), "--check"]
    answer = subprocess.run(check, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_lint_has_nothing_to_say(helm_program: Path, chart: Path) -> None:
    answer = subprocess.run([helm_program, "lint", "--strict", chart], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "[WARNING]" not in answer.stdout


def test_a_namespaced_installation_has_no_cluster_role(render: Render) -> None:
    objects = render({"scope": "namespaced"})
    assert not {"ClusterRole", "ClusterRoleBinding"} & set(kinds(objects))
    assert {each["metadata"]["namespace"] for each in objects if each["kind"] == "Role"} == {"cleanrl-system"}
    cluster_wide = {"CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    without = {"scope": "namespaced", "crds": {"install": False}, "admissionPolicy": {"enabled": False}}
    assert not cluster_wide & set(kinds(render(without)))


def test_nothing_is_in_the_release_that_argo_cd_leaves_out(render: Render) -> None:
    """What it takes for the doings of a running program it neither applies nor shows."""
    assert not {"Lease", "Endpoints", "EndpointSlice", "Event"} & set(kinds(render()))


def test_the_operator_is_told_only_what_it_knows(render: Render) -> None:
    table = [{"requirements": ["atari"], "image": "a:1"}, {"requirements": ["envpool", "atari"], "image": "b:1"}]
    cache = {"claimName": "wheels", "indexUrl": "https://packages.example/simple"}
    route = {"kind": "Ingress", "host": "boards.example", "ingressClassName": "nginx"}
    values = {
        "operatorClass": "blue",
        "worker": {"images": table, "wheelCache": cache},
        "tensorboard": {"route": route, "always": False},
        "metrics": {"authorize": True},
    }
    container = of_kind(render(values), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    environment = {each["name"]: each.get("value", "from-the-pod") for each in container["env"]}
    settings = Settings.from_env(environment)  # raises on a name that it does not know
    assert settings.operator_class == "blue"
    assert settings.images == {"atari": "a:1", "atari+envpool": "b:1"}
    assert settings.image_for(None, ["envpool"]) == "b:1"
    assert (settings.wheel_cache_claim, settings.package_index) == ("wheels", "https://packages.example/simple")
    assert (settings.tensorboard_always, settings.metrics_auth) == (False, True)
    assert (settings.tensorboard_route, settings.tensorboard_host) == ("Ingress", "boards.example")
    assert (settings.tensorboard_scheme, settings.tensorboard_ingress_class) == ("https", "nginx")
    assert settings.gateway_target == "cleanrl-cleanrl-operator-gateway.cleanrl-system.svc:50055"
    defaults = {each.name: each.default for each in dataclasses.fields(Settings)}
    rendered = of_kind(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    chosen = {"GATEWAY_TARGET", "WORKER_IMAGE", "LEASE_NAME", "POD_NAME", "POD_NAMESPACE"}
    same = {each["name"].removeprefix(ENV_PREFIX): each.get("value") for each in rendered}
    drifted = {
        name
        for name, value in same.items()
        if name not in chosen and str(defaults[name.lower()]).lower() != str(value).lower()
    }
    assert not drifted, "the chart's defaults and the operator's own differ"


def test_boards_may_be_right_below_the_host(render: Render, make_run: Callable[[], Run]) -> None:
    deployment = of_kind(render({"tensorboard": {"basePath": ""}}), "Deployment")
    environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    settings = Settings.from_env({each["name"]: each.get("value", "from-the-pod") for each in environment})
    assert tensorboard.base_path(make_run(), settings) == "/ns/run"


def test_a_value_that_is_left_empty_is_the_default(render: Render) -> None:
    empty = {
        "operatorClass": None,
        "logLevel": None,
        "worker": {"graceSeconds": None, "wheelCache": {"indexUrl": None}},
        "tensorboard": {"basePath": None},
    }
    given, usual = (
        of_kind(render(values), "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
        for values in (empty, {})
    )
    settings = [Settings.from_env({each["name"]: each.get("value", "x") for each in env}) for env in (given, usual)]
    assert settings[0] == settings[1]
    dashboards = {"enabled": True, "labels": {"grafana_dashboard": None}}
    lists = {"admissionPolicy": {"csiDrivers": None}, "monitoring": {"dashboards": dashboards}}
    assert "volume.csi.driver in [])" in json.dumps(of_kind(render(lists), "ValidatingAdmissionPolicy"))


def test_service_links_can_not_be_taken_for_settings(render: Render) -> None:
    assert of_kind(render(), "Deployment")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_secrets_are_read_by_one_name_in_one_namespace(render: Render) -> None:
    objects = render()
    for role in (each for each in objects if each["kind"] in ("ClusterRole", "Role")):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
                assert rule["resourceNames"] == [SECRET_NAME]
                assert role["kind"] == "Role"
                assert role["metadata"]["namespace"] == "cleanrl-system"


def test_rights_grow_only_with_what_is_asked_for(render: Render) -> None:
    def granted(values: dict[str, Any]) -> set[str]:
        roles = [each for each in render(values) if each["kind"] in ("Role", "ClusterRole")]
        rules = [rule for each in roles for rule in each["rules"]]
        return {
            f"{group}/{kind}"
            for rule in rules
            if "resources" in rule
            for group in rule["apiGroups"]
            for kind in rule["resources"]
        }

    plain, lean = granted({}), granted({"tensorboard": {"always": False}})
    assert plain - lean == {"/services", "apps/deployments"}
    ingress = granted({"tensorboard": {"route": {"kind": "Ingress", "host": "h"}}})
    assert ingress - plain == {"networking.k8s.io/ingresses"}
    gateway = granted({"tensorboard": {"route": {"kind": "HTTPRoute", "host": "h", "gateway": "infra/main"}}})
    assert gateway - plain == {"gateway.networking.k8s.io/httproutes"}
    assert granted({"metrics": {"authorize": True}}) - plain == {"authorization.k8s.io/subjectaccessreviews"}


def test_monitors_are_made_when_asked_for(render: Render) -> None:
    assert not {"ServiceMonitor", "PodMonitor"} & set(kinds(render()))
    asked = {"serviceMonitor": {"enabled": True, "labels": {"release": "prom"}}, "podMonitor": {"enabled": True}}
    objects = render({"monitoring": asked})
    monitor = of_kind(objects, "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    port = monitor["spec"]["endpoints"][0]["port"]
    labels = monitor["spec"]["selector"]["matchLabels"]
    services = [each for each in objects if each["kind"] == "Service"]
    selected = [each for each in services if labels.items() <= each["metadata"]["labels"].items()]
    assert [port in [each["name"] for each in service["spec"]["ports"]] for service in selected] == [True]
    assert of_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"


def test_a_token_for_the_metrics_goes_over_tls_only(render: Render) -> None:
    monitoring = {"serviceMonitor": {"enabled": True}}
    peer = [{"podSelector": {}}]
    objects = render({"monitoring": monitoring, "metrics": {"authorize": True}, "networkPolicy": {"metricsFrom": peer}})
    (endpoint,) = of_kind(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"] == {"secret": {"name": "cleanrl-gateway", "key": "ca.crt"}}
    assert "insecureSkipVerify" not in endpoint["tlsConfig"]
    container = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    settings = Settings.from_env({each["name"]: each.get("value", "from-the-pod") for each in container["env"]})
    assert endpoint["tlsConfig"]["serverName"] == settings.metrics_host
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["metrics"] == settings.secure_metrics_port
    (service,) = [each for each in objects if each["kind"] == "Service" and "metrics" in each["metadata"]["name"]]
    assert settings.metrics_host == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    (port,) = [each for each in service["spec"]["ports"] if each["name"] == endpoint["port"]]
    assert (port["port"], port["targetPort"]) == (settings.secure_metrics_port, "metrics")
    policy = next(each for each in objects if each["kind"] == "NetworkPolicy")
    assert [rule["ports"] for rule in policy["spec"]["ingress"]][-1] == [{"port": "metrics", "protocol": "TCP"}]
    (plain,) = of_kind(render({"monitoring": monitoring}), "ServiceMonitor")["spec"]["endpoints"]
    assert {"scheme", "tlsConfig", "bearerTokenFile"} & plain.keys() == set()


def test_worker_policies_are_made_in_the_namespaces_named(render: Render) -> None:
    policies = [each for each in render() if each["kind"] == "NetworkPolicy"]
    assert len(policies) == 1
    asked = {"networkPolicy": {"workers": {"namespaces": ["team-a", "team-b"]}}}
    policies = [each["metadata"] for each in render(asked) if each["kind"] == "NetworkPolicy"]
    assert sorted((each["namespace"], each["name"].removeprefix("cleanrl-cleanrl-operator")) for each in policies) == [
        ("cleanrl-system", ""),
        ("team-a", ".cleanrl-system-tensorboards"),
        ("team-a", ".cleanrl-system-workers"),
        ("team-b", ".cleanrl-system-tensorboards"),
        ("team-b", ".cleanrl-system-workers"),
    ]
    own = [each for each in render({"scope": "namespaced"}) if each["kind"] == "NetworkPolicy"]
    assert {each["metadata"]["namespace"] for each in own} == {"cleanrl-system"}
    assert len(own) == 3


def test_the_crd_is_kept_only_if_asked(render: Render) -> None:
    definition = of_kind(render(), "CustomResourceDefinition")
    assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert definition == yaml.safe_load(next((PROJECT / "crds").glob("*.yaml")).read_text())
    loose = of_kind(render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in loose["metadata"]


def test_it_can_be_a_dependency_that_is_turned_on_by_a_value(helm_program: Path, chart: Path, tmp_path: Path) -> None:
    """The parent's switch lies among the values of the chart, whose schema has to know it."""
    dependency = {"name": "cleanrl-operator", "version": "*", "repository": "", "condition": "cleanrl-operator.enabled"}
    parent = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "cleanrl-operator").symlink_to(chart)
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(parent))
    for switch, expected in ((True, "kind: Deployment"), (False, "")):
        (tmp_path / "values.yaml").write_text(yaml.safe_dump({"cleanrl-operator": {"enabled": switch}}))
        answer = subprocess.run(
            [helm_program, "template", "platform", tmp_path], capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr
        assert (expected in answer.stdout) if switch else not answer.stdout.strip()


def test_a_large_number_is_written_as_one(render: Render) -> None:
    """YAML's numbers reach a template as floating point, which is written with an exponent from a million on."""
    objects = render({"worker": {"userId": 1000650000}})
    container = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert Settings.from_env({each["name"]: each.get("value", "x") for each in container["env"]}).user_id == 1000650000


def test_a_namespace_may_be_a_number(render: Render) -> None:
    """One for each customer's, for example: where it is not quoted, the API server refuses the object."""
    monitoring = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}, "rules": {"enabled": True}}
    monitoring["dashboards"] = {"enabled": True}
    for scope in ("cluster", "namespaced"):
        numbered = render({"scope": scope, "monitoring": monitoring}, namespace="12345")
        named = render({"scope": scope, "monitoring": monitoring}, namespace="customer")
        assert json.dumps(numbered) == json.dumps(named).replace("customer", "12345"), "texts, in the same places"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"scope": "everything"}, "scope"),
        ({"replica": 2}, "replica"),
        ({"gateway": {"port": 0}}, "gateway.port"),
        ({"worker": {"userId": 0}}, "worker.userId"),
        ({"worker": {"images": [{"requirements": ["Atari"], "image": "x"}]}}, "worker.images"),
        ({"worker": {"wheelCache": {"indexUrl": "https://me:secret@packages.example"}}}, "worker.wheelCache.indexUrl"),
        ({"tensorboard": {"route": {"kind": "Ingress"}}}, "tensorboard.route.host has to say"),
        ({"tensorboard": {"route": {"kind": "HTTPRoute", "host": "h"}}}, "tensorboard.route.gateway has to name"),
        ({"scope": "namespaced", "metrics": {"authorize": True}}, "metrics.authorize asks the API server"),
        ({"image": {"tag": 1}}, "image.tag"),
        ({"crds": {"keep": "yes"}}, "crds.keep"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name has to say"),
        ({"scope": None}, "missing property 'scope'"),
        ({"worker": None}, "missing property 'worker'"),
        ({"admissionPolicy": {"enabled": None}}, "missing property 'enabled'"),
        ({"crds": {"install": None}}, "missing property 'install'"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_its_name(render: Render, values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint.replace(".", "[./]")):
        render(values)


def test_every_value_is_in_the_schema(render: Render, chart: Path) -> None:
    """The default values themselves pass, and the schema knows no key that the values do not."""
    schema = yaml.safe_load((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())
    render()

    def compare(part: dict[str, Any], value: Any, path: str) -> None:
        part = schema["definitions"][part["$ref"].rsplit("/", 1)[-1]] if "$ref" in part else part
        if "properties" in part:
            of_a_parent = {"global", "enabled"} if path == "values" else set()
            assert set(part["properties"]) - of_a_parent == set(value), path
            for name in set(value):
                compare(part["properties"][name], value[name], f"{path}.{name}")

    compare(schema, values, "values")
