"""The operator's program: every kopf decorator is on this page.

kopf watches the runs (their pods are `podwatch`'s); its handlers do one thing, they hand over what they saw: into the cache,
and the run's key into our queue. kopf never writes: no change handlers, no timers, no daemons, and so no finalizers and no
annotations of its own on anything.

It has a thread and an event loop of its own. There it may parse a long list without holding up the gateway, and when it ends
it cancels every task of its loop, which must not be the gateway's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import kopf
import uvloop
from kopf._cogs.clients import api as kopf_api
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from cleanrl_operator import logs, nesting
from cleanrl_operator.api import GROUP, PLURAL, VERSION
from cleanrl_operator.kube import PAGE
from cleanrl_operator.memory import give_back_freed_memory
from cleanrl_operator.program import Operator
from cleanrl_operator.settings import Settings


class Patience:
    """Pauses between attempts to reach the API server, for ever: whether to give up is the lease's to say."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1, 2, 3), itertools.repeat(5))


class NoMemory(kopf.DiffBaseStorage):
    """Keeps no copy of what was handled, since no handler asks what has changed.

    kopf copies every object it sees several times over for that question, asked or not: four fifths of its time here.
    """

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:  # noqa: ARG002
        """Nothing of an object is essential."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002 - kopf's names
        """Nothing is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is to be stored."""


class NothingKept(ResourceMemories):
    """Records of objects that are never kept, since no handler asks for one.

    kopf keeps a record of every object until it sees it deleted, and for good where its watch had to list afresh meanwhile.
    """

    async def recall(self, raw_body: Any, **options: Any) -> ResourceMemory:
        """A new record each time."""
        return await super().recall(raw_body, **{**options, "ephemeral": True})


class AnyDepth:
    """Reads JSON for kopf, in the place of the standard library, whose RecursionError would end the watch on all runs."""

    loads = staticmethod(nesting.parse)

    @staticmethod
    async def get(url: str, **options: Any) -> Any:
        """As kopf's own, whose answers are read by the standard library too."""
        response = await kopf_api.request(method="get", url=url, **options)
        async with response:
            return nesting.parse(await response.read())

    @classmethod
    def take_over(cls) -> None:
        """From here on."""
        kopf_api.json = cls  # type: ignore[attr-defined,assignment]
        kopf_api.get = cls.get


def register(registry: kopf.OperatorRegistry, operator: Operator, hand_over: Callable[..., Any]) -> None:
    """All handlers of the program. `hand_over` calls a function of the operator in the operator's loop."""

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 310
        settings.watching.connect_timeout = 30
        settings.networking.request_timeout = 60
        settings.networking.error_backoffs = Patience()
        settings.networking.enforce_retry_after = True
        settings.scanning.disabled = True
        settings.persistence.diffbase_storage = NoMemory()
        settings.watching.chunk_size = PAGE  # ten thousand runs in one piece would take more memory than all else
        settings.queueing.idle_timeout = 0.05  # nor should each of them keep a task for seconds
        hand_over(operator.watching.set)

    @kopf.on.login(registry=registry)
    def log_in(**context: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def run_seen(type: str | None, body: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        hand_over(operator.run_deleted if type == "DELETED" else operator.run_changed, dict(body))


async def watch(operator: Operator) -> None:
    """kopf, in a thread of its own, until this is cancelled or kopf ends."""
    loop, stop = asyncio.get_running_loop(), threading.Event()
    registry = kopf.OperatorRegistry()
    register(registry, operator, loop.call_soon_threadsafe)
    names = operator.settings.namespaces
    AnyDepth.take_over()

    def run_kopf() -> None:
        options: dict[str, Any] = {"clusterwide": not names, "namespaces": names, "standalone": True, "stop_flag": stop}
        with contextlib.suppress(asyncio.CancelledError):  # it has ended, like in any other way
            uvloop.run(kopf.operator(registry=registry, memories=NothingKept(), **options))

    kopf_runs = asyncio.create_task(asyncio.to_thread(run_kopf))
    try:
        await asyncio.shield(kopf_runs)
    except asyncio.CancelledError:
        stop.set()
        await kopf_runs
        raise


async def run(settings: Settings) -> int:
    """The whole program, inside its loop."""
    return await Operator(settings, watch).run()


def collect_seldom() -> None:
    """Look for cyclic garbage a tenth as often as Python would: bodies and tasks are many and free of cycles."""
    gc.freeze()  # modules stay for good
    gc.set_threshold(10_000, 20, 10)


def main() -> int:
    """Run until a signal comes."""
    argparse.ArgumentParser(
        prog="cleanrl-operator",
        description="Looks after CleanRLRuns until it gets SIGTERM. The cluster is that of KUBECONFIG, or the pod's own.",
        epilog="Settings come from the environment:\n" + "\n".join(f"  {line}" for line in Settings.names()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    try:
        settings = Settings.from_env(os.environ)
        logs.set_up(settings.log_level)
    except ValueError as error:
        sys.stderr.write(f"cleanrl-operator: {error}\n")
        return 2
    collect_seldom()
    give_back_freed_memory()
    return uvloop.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
