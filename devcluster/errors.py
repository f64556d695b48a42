"""What goes wrong with a cluster, said in one sentence for the person who asked for it."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster can't be what was asked; the message says why and what helps."""


class Busy(ClusterError):
    """Another command is at work on the same cluster."""
