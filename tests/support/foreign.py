"""Resources of other projects that the chart makes objects of."""

from __future__ import annotations

from typing import Any

MONITORING = "monitoring.coreos.com"
MONITORS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


def prometheus_operator() -> list[dict[str, Any]]:
    """The Prometheus Operator's resources, which take anything here: its own rules are not ours to test."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.{MONITORING}"},
            "spec": {
                "group": MONITORING,
                "scope": "Namespaced",
                "names": {"plural": f"{kind.lower()}s", "singular": kind.lower(), "kind": kind},
                "versions": [version],
            },
        }
        for kind in MONITORS
    ]
