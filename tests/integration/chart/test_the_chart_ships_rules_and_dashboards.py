"""Rules and dashboards leave the chart as they are in the repository: the files that the tests of metrics judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from cleanrl_operator.desired import pod
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

Render = Callable[..., list[dict[str, Any]]]


def by_name(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def test_nothing_is_shipped_unasked(render: Render) -> None:
    objects = render()
    assert "PrometheusRule" not in {each["kind"] for each in objects}
    assert not [each for each in objects if each["metadata"]["name"].endswith("-dashboards")]


def test_rules_arrive_unchanged(render: Render, chart: Path) -> None:
    objects = render({"monitoring": {"rules": {"enabled": True, "labels": {"release": "prom"}}}})
    rule = by_name(objects, "PrometheusRule", "cleanrl-cleanrl-operator")
    assert rule["spec"] == yaml.safe_load((chart / "rules" / "cleanrl.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prom"


def test_dashboards_arrive_unchanged_where_grafana_looks(render: Render, chart: Path) -> None:
    asked = {"enabled": True, "annotations": {"grafana_folder": "RL"}}
    shipped = by_name(render({"monitoring": {"dashboards": asked}}), "ConfigMap", "cleanrl-cleanrl-operator-dashboards")
    assert shipped["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert shipped["metadata"]["annotations"] == {"grafana_folder": "RL"}
    files = sorted((chart / "dashboards").glob("*.json"))
    assert {name: json.loads(text) for name, text in shipped["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in files
    }


def test_series_of_runs_keep_their_own_namespace_and_workers_get_the_name_of_their_run(render: Render) -> None:
    objects = render({"monitoring": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}})
    monitors = {each["kind"]: each["spec"] for each in objects if each["kind"].endswith("Monitor")}
    assert monitors["ServiceMonitor"]["endpoints"][0]["honorLabels"] is True
    (relabeling,) = monitors["PodMonitor"]["podMetricsEndpoints"][0]["relabelings"]
    assert relabeling == {"sourceLabels": ["__meta_kubernetes_pod_label_mosaic_dev_run"], "targetLabel": "run"}


def test_each_installation_scrapes_its_own_workers_only(render: Render, make_run: Callable[..., Run]) -> None:
    def labels(operator_class: str) -> dict[str, str]:
        built = pod.build(make_run(**({"operatorClass": operator_class} if operator_class else {})), Settings())
        return dict(built["metadata"]["labels"])

    def scraped(operator_class: str, pod_labels: dict[str, str]) -> bool:
        values = {"operatorClass": operator_class, "monitoring": {"podMonitor": {"enabled": True}}}
        (monitor,) = [each["spec"] for each in render(values) if each["kind"] == "PodMonitor"]
        chosen = {"In": lambda asked: pod_labels.get(asked["key"]) in asked["values"]}
        chosen |= {"DoesNotExist": lambda asked: asked["key"] not in pod_labels}
        expressions = monitor["selector"]["matchExpressions"]
        wanted = monitor["selector"]["matchLabels"].items() <= pod_labels.items()
        return wanted and all(chosen[asked["operator"]](asked) for asked in expressions)

    classes = ("", "blue", "green")
    assert [[scraped(mine, labels(whose)) for whose in classes] for mine in classes] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
