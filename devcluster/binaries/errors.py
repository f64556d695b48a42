"""What can go wrong on the way to a program, always as one sentence with its remedy."""

from __future__ import annotations

from devcluster.errors import ClusterError


class BinaryError(ClusterError):
    """A program can't be had; the message is one sentence for a person."""


class Unavailable(BinaryError):
    """One way of getting a program is closed (site not reachable, nothing published); another way may be open."""
