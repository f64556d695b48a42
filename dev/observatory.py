"""A real Prometheus over a real run, and what the dashboards' panels show of it.

    python dev/observatory.py --out docs/images     train for a minute, then draw every panel into two pictures

The pictures in the documentation are made by this command, and the tests of the dashboards stand on the same parts: the
worker is a process that trains, the operator's page is written by the operator's own collectors, Prometheus is Debian's.
Only the run's status is made up, out of what the worker says; there is no cluster behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from cleanrl_operator import metrics
from cleanrl_operator.cache import Cache
from cleanrl_operator.health import HealthServer, LoopLag
from cleanrl_operator.metrics import Headlines, Spoken, Tally

PROJECT = Path(__file__).resolve().parent.parent
CHART = PROJECT / "helm" / "cleanrl-operator"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
RULES = CHART / "rules" / "cleanrl.yaml"
NAMESPACE, RUN = "ml", "cartpole"
SPEC = {
    "algo": "ppo",
    "envId": "CartPole-v1",
    "totalTimesteps": 1_000_000_000,  # it is stopped, and must not end by itself before
    "checkpoint": {"everySeconds": 30},
    "resources": {"gpus": {"requested": 0}},
}


class Missing(Exception):
    """A program is not installed; the message says how to get it."""


def program(name: str) -> str:
    """The path of a program out of Debian's package of Prometheus."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed: run `make setup` as root, or `apt-get install prometheus`")
    return found


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """A Prometheus with its data in a folder of its own. `targets` maps a scrape job's name to (address, labels).

    `ways` has what else a job's scrape configuration says: scheme, authority, token.
    """

    def __init__(
        self,
        folder: Path,
        targets: Mapping[str, tuple[str, Mapping[str, str]]],
        ways: Mapping[str, Mapping[str, Any]] | None = None,
        interval: str = "1s",
    ) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        self._targets = targets
        self._ways = ways or {}
        self._interval = interval
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        config = {
            "global": {"scrape_interval": self._interval, "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": job,
                    "honor_labels": True,
                    "static_configs": [{"targets": [address], "labels": dict(labels)}],
                    **self._ways.get(job, {}),
                }
                for job, (address, labels) in self._targets.items()
            ],
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        until(self._ready, "Prometheus did not start", self._said)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        end(self._process)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        return self._ask("query", query=expression)

    def range(self, expression: str, seconds: float) -> list[dict[str, Any]]:
        """The series that an expression had in the last seconds."""
        now = time.time()
        return self._ask("query_range", query=expression, start=now - seconds, end=now, step=1)

    def alerts(self) -> set[str]:
        """The alerts that fire or are about to."""
        found: list[dict[str, Any]] = self._get("api/v1/alerts")["data"]["alerts"]
        return {each["labels"]["alertname"] for each in found}

    def _ask(self, what: str, **parameters: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get(f"api/v1/{what}?{urllib.parse.urlencode(parameters)}")["data"]["result"]
        return found

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=30) as answer:  # noqa: S310 - our own, on loopback
            return json.load(answer)

    def _ready(self) -> bool:
        try:
            self._get("api/v1/status/runtimeinfo")
        except OSError:
            return False
        return True

    def _said(self) -> str:
        return (self._folder / "prometheus.log").read_text()[-2000:]


class OperatorPage:
    """The operator's `/metrics`, by its own server and collectors, over one run that a worker's event log tells of."""

    def __init__(self, events: Path, spec: Mapping[str, Any] = SPEC) -> None:
        self._events = events
        self._spec = spec
        self._cache = Cache()
        self._headlines = Headlines()
        self._tally = Tally()
        self._version = 0
        self._loop = asyncio.new_event_loop()
        self._server: HealthServer
        self.port = free_port()

    def __enter__(self) -> OperatorPage:
        lag = LoopLag()
        page = metrics.OperatorPage(
            metrics.Source(
                leading=lambda: True,
                loop_lag=lag.take_worst,
                totals=lambda: {"reconciles": self._version, "status_writes": self._version},
                gauges=lambda: {"sessions": 1, "streams": 1, "headlines_left_out": self._headlines.left_out},
                states=lambda: self._cache.states,
                refusals=dict,
                arrivals=lambda: {"new": self._version},
                headlines=self._show,
                tally=self._tally,
            )
        )
        self._server = HealthServer(self.port, str, str, page)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _show(self) -> Any:
        """Read the worker's log as the gateway would hear it, and keep the run's status in the cache."""
        self._version += 1
        newest: dict[str, dict[str, Any]] = {}
        for line in self._events.read_text().splitlines() if self._events.exists() else ():
            with contextlib.suppress(ValueError):  # the last line may not be whole yet
                event = json.loads(line)
                newest[event["event"]] = event
        scalars = newest.get("scalars", {}).get("payload", {})
        status: dict[str, Any] = {"fsmState": "EXEC" if "run_started" in newest else "INIT", "podUID": "pod"}
        if "run_started" in newest:
            status["execStartedAt"] = _iso(newest["run_started"]["timestamp"])
        if "checkpoint_saved" in newest:
            status["checkpoint"] = {"time": _iso(newest["checkpoint_saved"]["timestamp"])}
        metadata = {"namespace": NAMESPACE, "name": RUN, "uid": "uid", "resourceVersion": str(self._version)}
        self._cache.put_run({"metadata": metadata, "spec": self._spec, "status": status})
        figures = {"step": scalars.get("step"), "sps": scalars.get("sps"), **scalars.get("values", {})}
        figures = {name: value for name, value in figures.items() if value is not None}
        silent = time.time() - max((event["timestamp"] for event in newest.values()), default=time.time())
        return self._headlines.collect((body for _, body in self._cache.runs()), {"uid": Spoken(figures, silent)})


@contextlib.contextmanager
def watched_run(folder: Path, interval: str = "1s") -> Iterator[Prometheus]:
    """A worker that trains CartPole, the operator's page about it, and a Prometheus that scrapes both."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CLEANRL_", "MOSAIC_"))}
    environment |= {"OMP_NUM_THREADS": "1", "CLEANRL_SCALARS_SECONDS": "1", "CLEANRL_CHECKPOINT_EVERY_SECONDS": "10"}
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "ppo", "--env-id", "CartPole-v1"]
    command += ["--total-timesteps", str(SPEC["totalTimesteps"]), "--metrics-port", str(port)]
    run = folder / "run"
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*command, "--run-dir", str(run)], stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        with OperatorPage(run / "events.jsonl") as page:
            targets: dict[str, tuple[str, Mapping[str, str]]] = {
                "worker": (f"127.0.0.1:{port}", {"namespace": NAMESPACE, "run": RUN}),
                "operator": (f"127.0.0.1:{page.port}", {}),
            }
            with Prometheus(folder, targets, interval=interval) as prometheus:
                yield prometheus
    finally:
        end(worker)


def panels(dashboard: Path, variables: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Each panel of a dashboard with its queries as Prometheus takes them: variables filled in."""
    given = {"namespace": NAMESPACE, "run": RUN, **(variables or {})}
    found = []
    for panel in json.loads(dashboard.read_text())["panels"]:
        queries = []
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in given.items():
                expression = expression.replace(f"${name}", value)
            queries.append((expression, target["legendFormat"]))
        found.append({"title": panel["title"], "type": panel["type"], "queries": queries})
    return found


def until(condition: Any, complaint: str, details: Any = str, seconds: float = 90.0) -> None:
    """Wait for a condition. Raises TimeoutError with the complaint and what `details` says."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{complaint}: {details()}")
        time.sleep(0.2)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process of ours in order, and at last for sure."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def draw(prometheus: Prometheus, dashboard: Path, seconds: float, out: Path) -> Path:
    """Draw what a dashboard's panels show of the last seconds into one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = panels(dashboard)
    columns = 3
    rows = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(15, 2.6 * rows), squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    for axis, panel in zip(axes.flat, shown, strict=False):
        axis.set_title(panel["title"], fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        for expression, legend in panel["queries"]:
            for series in prometheus.range(expression, seconds):
                label = legend
                for name, value in series["metric"].items():
                    label = label.replace("{{" + name + "}}", value)
                times = [float(at) for at, _ in series["values"]]
                axis.plot(
                    [at - times[-1] for at in times], [float(value) for _, value in series["values"]], label=label[:40]
                )
        if any(legend for _, legend in panel["queries"]) and 0 < len(axis.get_lines()) <= 10:
            axis.legend(fontsize=6, loc="best")
    title = json.loads(dashboard.read_text())["title"]
    figure.suptitle(f"{title}: the last {seconds:.0f} seconds", fontsize=12, x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{dashboard.stem}.png"
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)
    return path


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def main() -> int:
    """Train, scrape, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=PROJECT / "docs" / "images", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train; default: %(default)s")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        with watched_run(folder) as prometheus:
            until(
                lambda: prometheus.query("cleanrl_worker_rolling_return"),
                "the worker shows nothing",
                (folder / "worker.log").read_text,
            )
            for left in range(int(arguments.seconds), 0, -10):
                sys.stderr.write(f"training and scraping, {left} s left\n")
                time.sleep(min(10, left))
            for dashboard in DASHBOARDS:
                print(draw(prometheus, dashboard, arguments.seconds, arguments.out))
    except Missing as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
