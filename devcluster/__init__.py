"""A real Kubernetes on one machine, for the demo, the tests and the benchmarks: no Docker, no registry, no download site.

`devcluster up --node` on the command line, `with Cluster(node=True) as cluster:` in Python, and the fixtures of
`devcluster.pytest_plugin` in tests are three ways to the same code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from devcluster.cluster import Cluster
    from devcluster.errors import ClusterError
    from devcluster.spec import Options

__all__ = ["Cluster", "ClusterError", "Options"]


def __getattr__(name: str) -> Any:
    """Import on first use: the set-up imports `devcluster.progress` before any other package is installed."""
    if name == "Cluster":
        from devcluster.cluster import Cluster

        return Cluster
    if name == "ClusterError":
        from devcluster.errors import ClusterError

        return ClusterError
    if name == "Options":
        from devcluster.spec import Options

        return Options
    raise AttributeError(f"module 'devcluster' has no attribute {name!r}")
