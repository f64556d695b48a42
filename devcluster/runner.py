"""Starting, watching and ending the components of one cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from devcluster import processes
from devcluster.components import Component, Stage
from devcluster.errors import ClusterError
from devcluster.layout import Layout
from devcluster.processes import Identity
from devcluster.progress import Progress
from devcluster.surroundings import search_path

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_NO_PROXY = {name: "" for lower in _PROXIES for name in (lower, lower.upper())}
"""Components speak to each other only; a proxy meant for the internet would swallow that."""


GRACE = 20.0
"""Seconds a component may take to end after SIGTERM: the API server at times needs most of them."""


class Died(ClusterError):
    """A component ended while it should have been running."""


class Runner:
    """The components of a cluster as processes."""

    def __init__(self, layout: Layout, prefix: Sequence[str] = ()) -> None:
        self._layout = layout
        self.prefix = list(prefix)
        """The command that enters the node's namespaces."""

    def start(self, component: Component) -> Identity:
        """Start one component, after whatever is left of an earlier one has ended."""
        self.stop(component.name)
        prefix = self.prefix if component.inside else []
        return processes.start(
            [*prefix, *component.argv],
            log=self._layout.log_of(component.name),
            record=self._record(component.name),
            mark=self._layout.root,
            env={**_NO_PROXY, "PATH": search_path(), **component.env},
        )

    def process(self, name: str) -> Identity | None:
        """The living process of a component."""
        return processes.recorded(self._record(name))

    def sound(self, component: Component) -> bool:
        """Whether the component runs and answers."""
        return self.process(component.name) is not None and component.healthy()

    def stop(self, name: str) -> None:
        """End one component."""
        identity = self.process(name)
        if identity is not None:
            processes.stop([identity], grace=GRACE)
        self._record(name).unlink(missing_ok=True)

    def stop_all(self) -> None:
        """End the recorded components, the youngest first: nobody misses what it depends on."""
        living = {name: identity for name in self._recorded() if (identity := self.process(name))}
        for name in sorted(living, key=lambda name: living[name].started, reverse=True):
            self.stop(name)

    def bring_up(self, components: Sequence[Component], stage: Stage, progress: Progress | None = None) -> None:
        """Start the components of a stage that do not run and answer, and wait until all of them do."""
        waiting = [each for each in components if each.stage == stage]
        for component in list(waiting):
            if self.process(component.name) is None:
                self.start(component)
            elif component.healthy():
                waiting.remove(component)
        started = time.monotonic()
        restarted: set[str] = set()
        while waiting:
            for component in list(waiting):
                if component.healthy() and self.process(component.name) is not None:
                    waiting.remove(component)
                elif self.process(component.name) is None:
                    raise Died(self._obituary(component))
                elif time.monotonic() - started > component.patience:
                    if component.name in restarted:
                        raise ClusterError(
                            f"{component.name} runs but does not answer after {component.patience:.0f} s"
                            f"{self._last_words(component)}"
                        )
                    restarted.add(component.name)
                    self.start(component)
                    started = time.monotonic()
            if waiting:
                if progress is not None:
                    progress.label = f"waiting for {', '.join(each.name for each in waiting)}"
                time.sleep(0.1)

    def sweep(self) -> None:
        """Kill every process that carries this cluster's mark, recorded or not."""
        for _ in range(5):  # a helper may start while its parent ends
            leftovers = processes.marked(self._layout.root)
            if not leftovers:
                return
            processes.kill(leftovers)
        raise ClusterError(
            f"Processes {', '.join(str(each.pid) for each in leftovers)} of cluster {self._layout.name!r} do not end: "
            "run the command again."
        )

    def _recorded(self) -> list[str]:
        return [path.stem for path in self._layout.pids.glob("*.json")] if self._layout.pids.is_dir() else []

    def _record(self, name: str) -> Path:
        return self._layout.pids / f"{name}.json"

    def _obituary(self, component: Component) -> str:
        return f"{component.name} ended while it was starting{self._last_words(component)}"

    def _last_words(self, component: Component) -> str:
        """The last line that a component wrote about a problem, for the sentence about its end."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self._layout.log_of(component.name).read_text(errors="replace").splitlines()[-40:]
        telling = [line for line in lines if line.startswith(("E", "F", "Error")) or '"level":"fatal"' in line]
        chosen = (telling or [line for line in lines if line.strip()] or [""])[-1].strip()
        return f": {chosen[:400]}" if chosen else "."
