"""Programs for the cluster: found on the machine, taken from the cache, downloaded, or built from pinned Go modules."""

from devcluster.binaries.catalog import PROGRAMS
from devcluster.binaries.cli import cli_main
from devcluster.binaries.errors import BinaryError
from devcluster.binaries.obtain import ensure, ensure_many

__all__ = ["PROGRAMS", "BinaryError", "cli_main", "ensure", "ensure_many"]
