"""The objects that a cluster is born with: storage classes, DNS, the runtime class, pretended nodes."""

from __future__ import annotations

from devcluster import kwok, storage
from devcluster.api import Api, ApiError, Object
from devcluster.spec import SERVICE_DNS, Spec


def create(api: Api, spec: Spec) -> None:
    """Create what is missing; what is there stays as it is."""
    for collection, each in _objects(spec):
        if not _exists(api, f"{collection}/{each['metadata']['name']}"):
            api.create(collection, each)


def _exists(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


def _objects(spec: Spec) -> list[tuple[str, Object]]:
    """Each object with the collection it belongs to."""
    objects = [("/apis/storage.k8s.io/v1/storageclasses", each) for each in storage.classes()]
    if spec.node:
        endpoints = _dns_endpoints(spec.address)
        objects += [
            ("/apis/node.k8s.io/v1/runtimeclasses", _image_only()),
            ("/api/v1/namespaces/kube-system/services", _dns_service()),
            ("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", endpoints),
        ]
    for number in range(spec.options.kwok_nodes):
        objects.append(("/api/v1/nodes", kwok.node(f"kwok-{number}", beside_real_node=spec.node)))
    return objects


def _image_only() -> Object:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "image-only"},
        "handler": "image-only",
    }


def _dns_service() -> Object:
    """DNS runs beside the cluster, not in a pod: a Service without a selector, and its endpoint by hand."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {
            "clusterIP": SERVICE_DNS,
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    }


def _dns_endpoints(address: str) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {
                "kubernetes.io/service-name": "kube-dns",
                "endpointslice.kubernetes.io/managed-by": "devcluster",
            },
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ],
    }
