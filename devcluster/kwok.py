"""Pretended nodes: what kwok does with a node and with the pods that the scheduler puts there.

A node becomes ready and stays so by its lease. A pod becomes running and ready at once, keeps running until somebody
sets another status, and is gone as soon as it is deleted. No process ever starts.
"""

from __future__ import annotations

import json

from devcluster.api import Object

ANNOTATION = "kwok.x-k8s.io/node"
SELECTOR = f"{ANNOTATION}=fake"

_NODE_READY = """
{{ $now := Now }}
phase: Running
conditions:
- {type: Ready, status: "True", reason: Pretended, message: this node runs nothing, \
lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}}
addresses:
- {type: Hostname, address: {{ .metadata.name | Quote }}}
nodeInfo: {architecture: amd64, operatingSystem: linux, kubeletVersion: pretended, containerRuntimeVersion: pretended, \
kernelVersion: pretended, kubeProxyVersion: "", osImage: pretended, bootID: "", machineID: "", systemUUID: ""}
"""

_POD_RUNNING = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
{{ range $type := (list "Initialized" "ContainersReady" "Ready") }}
- {type: {{ $type }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  restartCount: 0
  {{ if eq (or .restartPolicy "") "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
  {{ end }}
{{ end }}
{{ end }}
{{ with PodIPWith .spec.nodeName false (or .metadata.uid "") (or .metadata.name "") (or .metadata.namespace "") }}
podIP: {{ . | Quote }}
podIPs:
- ip: {{ . | Quote }}
{{ end }}
"""


def configuration() -> str:
    """kwok's configuration file."""
    alive = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    unready = {
        "key": '.status.conditions.[] | select( .type == "Ready" ) | .status',
        "operator": "NotIn",
        "values": ["True"],
    }
    pending = {"key": ".status.phase", "operator": "In", "values": ["Pending"]}
    deleted = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    stages = [
        _stage("node-ready", "Node", [unready], {"statusTemplate": _NODE_READY}),
        _stage("pod-running", "Pod", [alive, pending], {"statusTemplate": _POD_RUNNING}),
        _stage("pod-gone", "Pod", [deleted], {"delete": True}),
    ]
    return "\n---\n".join(json.dumps(stage) for stage in stages)


def node(name: str, *, beside_real_node: bool) -> Object:
    """A pretended node. Beside a real one it is tainted, so that only pods that ask for it land there."""
    capacity = {"cpu": "32", "memory": "256Gi", "pods": "1000", "ephemeral-storage": "1Ti"}
    wanted: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {ANNOTATION: "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
            },
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }
    if beside_real_node:
        wanted["spec"] = {"taints": [{"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}]}
    return wanted


def _stage(name: str, kind: str, conditions: list[Object], following: Object) -> Object:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": conditions},
            "next": following,
        },
    }
