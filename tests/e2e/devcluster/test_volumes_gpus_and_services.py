"""Claims that are really full, GPUs that are really counted, Services that really lead somewhere."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from devcluster import images
from devcluster.api import ApiError
from devcluster.cluster import Cluster
from devcluster.images import PAUSE

FILL = """
import errno
written = 0
with open("/data/big", "wb", buffering=0) as file:
    try:
        while written < 20 * 2**20:
            written += file.write(bytes(2**20))
    except OSError as error:
        print(errno.errorcode[error.errno], written // 2**20)
"""
SERVE = """
import http.server
http.server.HTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
ASK = """
import urllib.request
print(urllib.request.urlopen("http://served.NAMESPACE.svc:80/etc/nsswitch.conf", timeout=20).status)
"""

Make = Callable[..., dict[str, Any]]


def test_a_limited_claim_is_full_when_it_is_full(
    create: Callable[..., None], claim: Make, restricted_pod: Make, finish: Callable[[str], str]
) -> None:
    create(
        claim("small", "8Mi", storage_class="devcluster-limited"),
        restricted_pod("filler", FILL, claims={"small": "/data"}),
    )
    assert finish("filler").split() == ["ENOSPC", "8"]


def test_a_volume_over_a_lent_folder_hides_nothing_that_is_lent(
    create: Callable[..., None], restricted_pod: Make, finish: Callable[[str], str]
) -> None:
    """As when the project lies below /tmp, where most pods have a volume of their own."""
    folder = images.project_root().parent
    pod = restricted_pod("covered", f"import devcluster; open('{folder}/own', 'w'); print(devcluster.__file__)")
    pod["spec"]["volumes"] = [{"name": "own", "emptyDir": {}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "own", "mountPath": str(folder)}]
    create(pod)
    assert finish("covered").strip() == str(images.project_root() / "devcluster" / "__init__.py")


def test_two_pods_share_a_claim_and_its_folder_goes_with_it(
    node_cluster: Cluster,
    namespace: str,
    create: Callable[..., None],
    claim: Make,
    restricted_pod: Make,
    finish: Callable[[str], str],
) -> None:
    create(
        claim("shared", "1Gi", mode="ReadWriteMany"),
        restricted_pod("writer", "open('/data/x', 'w').write('from the writer')", claims={"shared": "/data"}),
    )
    finish("writer")
    create(restricted_pod("reader", "print(open('/data/x').read())", claims={"shared": "/data"}))
    assert finish("reader").strip() == "from the writer"

    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/shared"
    volume = node_cluster.api().get(path)["spec"]["volumeName"]
    node_cluster.kubectl("-n", namespace, "delete", "pod/writer", "pod/reader", "pvc/shared", "--timeout=60s")
    deadline = time.monotonic() + 30
    while (node_cluster.layout.volumes / volume).exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_gpus_are_counted(
    node_cluster: Cluster,
    namespace: str,
    create: Callable[..., None],
    restricted_pod: Make,
    finish: Callable[[str], str],
) -> None:
    create(restricted_pod("both", "print('ran')", limits={"nvidia.com/gpu": "2"}))
    assert finish("both").strip() == "ran"
    create(restricted_pod("greedy", "print('never')", limits={"nvidia.com/gpu": "3"}))
    unscheduled = "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].status}=False"
    node_cluster.kubectl("-n", namespace, "wait", "pod/greedy", unscheduled, "--timeout=30s")
    told = node_cluster.api().get(f"/api/v1/namespaces/{namespace}/pods/greedy")["status"]["conditions"][0]["message"]
    assert "Insufficient nvidia.com/gpu" in told


def test_gpus_come_back_when_something_takes_them_away(node_cluster: Cluster) -> None:
    path = f"/api/v1/nodes/{node_cluster.spec.node_name}"
    nothing = {"status": {"capacity": {"nvidia.com/gpu": "0"}, "allocatable": {"nvidia.com/gpu": "0"}}}
    node_cluster.api().merge(f"{path}/status", nothing)
    deadline = time.monotonic() + 30
    while node_cluster.api().get(path)["status"]["allocatable"]["nvidia.com/gpu"] != "2":
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_service_leads_to_its_pod_and_this_machine_reaches_pods(
    node_cluster: Cluster,
    namespace: str,
    create: Callable[..., None],
    restricted_pod: Make,
    finish: Callable[[str], str],
) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "served"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    create(service, restricted_pod("server", SERVE))
    node_cluster.kubectl("-n", namespace, "wait", "pod/server", "--for=condition=Ready", "--timeout=60s")
    address = node_cluster.api().get(f"/api/v1/namespaces/{namespace}/pods/server")["status"]["podIP"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    assert retry(lambda: opener.open(f"http://{address}:8000/etc/nsswitch.conf", timeout=20).status) == 200
    create(restricted_pod("asker", ASK.replace("NAMESPACE", namespace)))
    assert finish("asker").strip() == "200"


def test_the_restricted_profile_refuses_a_pod_that_asks_for_more(
    node_cluster: Cluster, namespace: str, restricted_pod: Make
) -> None:
    pod = restricted_pod("bold", "pass")
    pod["spec"]["hostNetwork"] = True
    with pytest.raises(ApiError, match="host namespaces"):
        node_cluster.api().create(f"/api/v1/namespaces/{namespace}/pods", pod)


def test_a_loaded_image_runs_with_its_own_files_only_where_asked(
    node_cluster: Cluster, namespace: str, create: Callable[..., None], restricted_pod: Make
) -> None:
    assert PAUSE in node_cluster.load_image(node_cluster.layout.config / "images.tar")
    pod = restricted_pod("own", "")
    pod["spec"]["runtimeClassName"] = "image-only"
    pod["spec"]["containers"][0] |= {"image": PAUSE, "command": ["/pause"]}
    create(pod)
    node_cluster.kubectl("-n", namespace, "wait", "pod/own", "--for=condition=Ready", "--timeout=60s")
    looked = node_cluster.kubectl("-n", namespace, "exec", "own", "--", "/usr/bin/env", check=False)
    assert looked.returncode != 0
    assert "no such file" in looked.stderr


def retry(ask: Callable[[], int]) -> int:
    """A pod is ready a moment before its program listens."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return ask()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
