"""The cluster's own helper process: makes volumes for claims, and keeps pretended GPUs on the node.

It runs inside the node's namespaces, because the file systems it mounts must be seen by the kubelet. Two threads watch
claims and volumes and do nothing but ring; one loop does the work, each time from the whole list, so that nothing is
missed and nothing is done twice.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

from devcluster import storage
from devcluster.api import Api, ApiError
from devcluster.components import api_client
from devcluster.layout import Layout
from devcluster.spec import Spec

GPU = "nvidia.com/gpu"
PAUSE = 5.0
"""Seconds between two looks when nothing rings."""
_WATCH_SECONDS = 300


def beat_file(layout: Layout) -> Path:
    """Touched at every look, so that others see the agent live."""
    return layout.root / "agent.beat"


def beats(layout: Layout) -> bool:
    """Whether the agent has looked lately."""
    try:
        return time.time() - beat_file(layout).stat().st_mtime < 6 * PAUSE
    except OSError:
        return False


def main() -> int:
    """Work until SIGTERM."""
    layout = Layout.of(sys.argv[1])
    spec = Spec.load(layout)
    if spec is None:
        sys.stderr.write(f"there is no cluster {layout.name!r}\n")
        return 1
    bell, ended = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        ended.set()
        bell.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    api = api_client(layout, spec, user="agent")
    for path in (storage.CLAIMS, storage.VOLUMES):
        threading.Thread(target=_ring_on_change, args=(api, path, bell), daemon=True).start()
    provisioner = storage.Provisioner(api, layout.volumes)
    while not ended.is_set():
        bell.clear()
        try:
            for problem in provisioner.reconcile():
                sys.stderr.write(f"{problem}\n")
            if spec.options.gpus:
                keep_gpus(api, spec.node_name, spec.options.gpus)
            beat_file(layout).touch()
        except ApiError as error:
            sys.stderr.write(f"{error}\n")
        if bell.wait(PAUSE):
            time.sleep(0.05)  # claims come in flocks: look once for all of them
    return 0


def keep_gpus(api: Api, node: str, count: int) -> None:
    """Put the GPUs into the node's capacity, again whenever the kubelet has registered without them."""
    path = f"/api/v1/nodes/{node}"
    try:
        status = api.get(path)["status"]
    except ApiError as error:
        if error.status == 404:
            return  # not registered yet
        raise
    wanted = str(count)
    if any(status.get(kind, {}).get(GPU) != wanted for kind in ("capacity", "allocatable")):
        api.merge(f"{path}/status", {"status": {"capacity": {GPU: wanted}, "allocatable": {GPU: wanted}}})


def _ring_on_change(api: Api, path: str, bell: threading.Event) -> None:
    while True:
        try:
            version = str(api.get(f"{path}?limit=1")["metadata"]["resourceVersion"])
            bell.set()
            for _ in api.watch(path, version, _WATCH_SECONDS):
                bell.set()
        except ApiError as error:
            sys.stderr.write(f"{error}\n")
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
