"""Faults from a test: start the proxy, put rules in force for the length of a `with`, read how often they struck."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_SECONDS = 10.0


class FaultProxyError(Exception):
    """The proxy could not be started, or refused a rule; the message says why."""


@dataclass
class Fault:
    """A rule in force. The counts stay readable after it is removed."""

    proxy: FaultProxy
    number: int
    final: dict[str, int] | None = None

    @property
    def struck(self) -> int:
        """How many requests the fault has struck so far."""
        return self._counts()["struck"]

    @property
    def matched(self) -> int:
        """How many requests of its kind there were, struck or spared by chance."""
        return self._counts()["matched"]

    @property
    def over(self) -> bool:
        """Whether the rule is gone, or the time it was to last is up."""
        return self.final is not None or any(
            rule["over"] for rule in self.proxy.rules() if rule["number"] == self.number
        )

    def remove(self) -> None:
        """Take the rule out of force. What it held goes on."""
        self.final = self.proxy.call("DELETE", f"/rules/{self.number}")

    def _counts(self) -> dict[str, int]:
        if self.final is not None:
            return self.final
        for rule in self.proxy.rules():
            if rule["number"] == self.number:
                return {"struck": rule["struck"], "matched": rule["matched"]}
        raise FaultProxyError(f"rule {self.number} is no longer in force")


def command(
    *,
    listen: str,
    upstream: str,
    certificate: Path,
    key: Path,
    upstream_ca: Path,
    control_port: int,
    seed: int | None = None,
    client_ca: Path | None = None,
    front_certificate: Path | None = None,
    front_key: Path | None = None,
) -> list[str]:
    """The command line that starts the proxy. `listen` is HOST:PORT; port 0 takes a free one."""
    options = {
        "--listen": listen, "--upstream": upstream, "--cert": certificate, "--key": key, "--ca": upstream_ca,
        "--control-port": control_port, "--seed": seed, "--client-ca": client_ca,
        "--front-cert": front_certificate, "--front-key": front_key,
    }  # fmt: skip
    given = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
    return [sys.executable, "-m", "devcluster.faultproxy", *given]


class FaultProxy:
    """A running fault proxy, by its control port."""

    def __init__(self, url: str, control_port: int, process: subprocess.Popen[str] | None = None) -> None:
        self.url = url
        """What a kubeconfig names as its server."""
        self._control = f"http://127.0.0.1:{control_port}"
        self._process = process

    @classmethod
    def start(cls, *, upstream: str, certificate: Path, key: Path, upstream_ca: Path, **options: Any) -> FaultProxy:
        """Start a proxy on a free port of loopback, in a process of its own, and wait until it serves."""
        arguments = command(
            listen=options.pop("listen", "127.0.0.1:0"), upstream=upstream, certificate=certificate, key=key,
            upstream_ca=upstream_ca, control_port=options.pop("control_port", 0), **options,
        )  # fmt: skip
        # The pipe ends with this process, however it ends, and the proxy with the pipe.
        arguments.append("--until-stdin-closes")
        process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise FaultProxyError(f"the fault proxy ended with code {process.wait()}; its reason is on standard error")
        ready = json.loads(line)
        return cls(f"https://{ready['host']}:{ready['port']}", ready["control_port"], process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process that start() made."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    @contextlib.contextmanager
    def fault(self, action: str = "", **rule: Any) -> Iterator[Fault]:
        """Put a rule in force for the body: `with proxy.fault(status=429, method="PATCH", times=3) as fault: ...`

        Without an action, `status` means an error answer and `seconds` a delay. See rules.Rule for all fields.
        """
        fault = self.add(action or ("status" if "status" in rule else "delay"), **rule)
        try:
            yield fault
        finally:
            fault.remove()

    @contextlib.contextmanager
    def outage(self) -> Iterator[Fault]:
        """No connection at all for the length of the body."""
        with self.fault("outage") as fault:
            yield fault

    def add(self, action: str, **rule: Any) -> Fault:
        """Put a rule in force until it is removed, its time is up (`lasts=SECONDS`), or the proxy ends."""
        answer = self.call("POST", "/rules", {"action": action, **rule})
        return Fault(self, int(answer["number"]))

    def rules(self) -> list[dict[str, Any]]:
        """The rules in force, with their counts."""
        rules: list[dict[str, Any]] = self.call("GET", "/rules")["rules"]
        return rules

    @property
    def seed(self) -> int:
        """What repeats the same chances in the same order."""
        return int(self.call("GET", "/rules")["seed"])

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request to the proxy's control port."""
        request = urllib.request.Request(  # noqa: S310 - always http on loopback
            self._control + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        # No proxy of the environment may stand between a test and loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                reason = json.loads(error.read() or b"{}").get("error", error.reason)
            raise FaultProxyError(f"the fault proxy refused: {reason}") from None
        except OSError as error:
            raise FaultProxyError(f"the fault proxy does not answer: {error}") from error
