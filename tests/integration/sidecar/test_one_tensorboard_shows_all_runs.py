"""A real TensorBoard over a claim, behind a proxy and a path: readable names, and a resumed run goes on without a break."""

from __future__ import annotations

import http.client
import http.server
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cleanrl_worker.training.writer import EventWriter

SECONDS = 120
PATH = "/tb/ml/all"


class Proxy(http.server.ThreadingHTTPServer):
    """Passes on what is below PATH, under a host name of its own, and nothing else: as an Ingress does."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Pass)
        self.behind = port
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class _Pass(http.server.BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        if self.path != PATH and not self.path.startswith(f"{PATH}/"):
            self.send_error(404)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        connection.request("GET", self.path, headers={"Host": "boards.example.org"})
        answer = connection.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() in ("content-type", "content-encoding", "location"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        connection.close()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def wait_for(condition: Callable[[], Any], complaint: Callable[[], object]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.3)
    return found


def made(runs: Path, name: str, env_id: str) -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    manifest = {"run_id": name, "algo": "ppo", "env_id": env_id, "seed": 1, "tensorboard_dir": "tensorboard"}
    (folder / "analytics.json").write_text(json.dumps(manifest))
    return folder / "tensorboard"


def test_every_run_has_a_readable_name_and_a_resumed_one_keeps_its_curve(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = EventWriter(made(runs, "01JDAAAAAAAAAAAAAAAAAAAAAA", "CartPole-v1"))
    for step in (100, 200, 300):
        first.scalars({"charts/episodic_return": float(step)}, step)
        if step == 200:
            position = first.position()
    first.close()
    inner = "Pendulum-v1__ppo__1__01JDBBBBBBBBBBBBBBBBBBBBBB"  # as algorithms do
    other = EventWriter(made(runs, "01JDBBBBBBBBBBBBBBBBBBBBBB", "Pendulum-v1") / inner)
    other.scalars({"charts/episodic_return": -1.0}, 5)
    other.close()

    command = [sys.executable, "-m", "cleanrl_worker.sidecar", "--all-runs", str(runs)]
    command += ["--", "--port", "0", "--host", "127.0.0.1", "--reload_interval=1", "--path_prefix", PATH]
    said = tmp_path / "said"
    with said.open("wb") as log:
        sidecar = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = wait_for(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/", said.read_text()), said.read_text)

        proxy = Proxy(int(found[1]))
        address = f"http://127.0.0.1:{proxy.server_port}{PATH}"

        def ask(path: str, **query: str) -> Any:
            url = f"{address}/data/{path}?{urllib.parse.urlencode(query)}"
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError:  # not loaded yet
                return None

        names = ["ppo__CartPole-v1__seed=1__AAAAAAAA", "ppo__Pendulum-v1__seed=1__BBBBBBBB"]
        wait_for(lambda: sorted(ask("runs") or ()) == names, lambda: ask("runs"))
        with urllib.request.urlopen(address, timeout=30) as page:  # TensorBoard leads from here to the folder's page
            assert page.url == f"{address}/"
            script = re.search(r'<script src="([^"]+)"', page.read().decode())
        assert script
        with urllib.request.urlopen(urllib.parse.urljoin(f"{address}/", script[1]), timeout=30) as code:
            assert code.status == 200, "what the page asks for is found below the path"

        def curve() -> dict[int, float]:
            series = ask("plugin/scalars/scalars", run=names[0], tag="charts/episodic_return") or ()
            return {int(step): value for _, step, value in series}

        wait_for(lambda: curve() == {100: 100.0, 200: 200.0, 300: 300.0}, curve)
        resumed = EventWriter(first.folder)
        resumed.rewind(position, 200)  # the attempt died after a checkpoint at step 200
        for step in (250, 350):
            resumed.scalars({"charts/episodic_return": step + 0.5}, step)
        resumed.close()
        expected = {100: 100.0, 200: 200.0, 250: 250.5, 350: 350.5}
        wait_for(lambda: curve() == expected, curve)
        assert sorted(ask("runs")) == names, "the next attempt is no run of its own"
    finally:
        sidecar.send_signal(signal.SIGTERM)
        sidecar.wait(60)
    assert sidecar.returncode == 0
