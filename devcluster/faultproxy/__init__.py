"""A proxy in front of the API server that injects what networks and busy servers do: errors, cuts, delays, silence."""

from devcluster.faultproxy.client import Fault, FaultProxy, FaultProxyError, command

__all__ = ["Fault", "FaultProxy", "FaultProxyError", "command"]
