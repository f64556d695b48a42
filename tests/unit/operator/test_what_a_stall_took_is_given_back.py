"""An API server that stalls, or a burst, has the operator open connections and take memory; both go back when it is over."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys

import pytest
from aiohttp import web
from cleanrl_operator import kube
from cleanrl_operator.kube import Kube
from kubernetes.aio import client

MANY = 40


class Server:
    """Answers at once, or not until it is let."""

    def __init__(self) -> None:
        self.connections: set[asyncio.BaseTransport] = set()
        self.opened = 0
        self.many_wait = asyncio.Event()
        self._waiting = 0
        self._answers = asyncio.Event()
        self._answers.set()

    async def start(self) -> int:
        """On a port of its own."""
        application = web.Application()
        application.router.add_get("/api", self._answer)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        await self._runner.cleanup()

    def stall(self) -> None:
        self._answers.clear()

    def go_on(self) -> None:
        self._answers.set()

    @property
    def open(self) -> int:
        return sum(not transport.is_closing() for transport in self.connections)

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self.opened += request.transport not in self.connections
        self.connections.add(request.transport)
        self._waiting += 1
        if self._waiting == MANY:
            self.many_wait.set()
        await self._answers.wait()
        self._waiting -= 1
        return web.json_response({"kind": "Something"})


async def asked(api: Kube, times: int) -> None:
    for _ in range(times):
        assert await api.get("api") == {"kind": "Something"}


async def stalled(server: Server, api: Kube) -> None:
    server.stall()
    together = [asyncio.create_task(asked(api, 1)) for _ in range(MANY)]
    await server.many_wait.wait()
    server.go_on()
    await asyncio.gather(*together)


def test_connections_go_back_to_as_many_as_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "REQUESTS_A_CONNECTION", 5)

    async def scenario() -> None:
        server = Server()
        configuration = client.Configuration(host=f"http://127.0.0.1:{await server.start()}")
        api = Kube(client.ApiClient(configuration=configuration))
        await stalled(server, api)
        before = server.open
        await asked(api, 5 * MANY)
        after = server.open
        await api.close()
        await server.stop()
        assert before > MANY / 2
        assert after == 0

    asyncio.run(scenario())


def test_a_calm_operator_seldom_opens_a_connection() -> None:
    async def scenario() -> None:
        server = Server()
        configuration = client.Configuration(host=f"http://127.0.0.1:{await server.start()}")
        api = Kube(client.ApiClient(configuration=configuration))
        await asked(api, 2 * kube.REQUESTS_A_CONNECTION)
        await api.close()
        await server.stop()
        assert server.opened == 2

    asyncio.run(scenario())


PROGRAM = """
import sys
from cleanrl_operator.memory import give_back_freed_memory

if sys.argv[1] == "give back":
    assert give_back_freed_memory()

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

kept = []
largest = bytearray(8 << 20)
del largest  # from here on glibc would keep pieces of this size in the heap
before = resident()
for _ in range(20):
    buffers = []
    for _ in range(5):
        buffers.append(bytearray(b"x" * (2 << 20)))
        kept.append(bytes(600))  # lives on, behind the page: more than pymalloc takes, so in the same heap
    del buffers
print(resident() - before)
"""


def mebibytes_left(how: str) -> float:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such switch")
def test_the_pages_of_long_lists_are_given_back() -> None:
    given_back, left = mebibytes_left("give back"), mebibytes_left("leave")
    assert given_back < 2, f"{given_back} MiB stayed"
    assert left > 2 * given_back, f"without the switch {left} MiB stay: the test shows nothing"


BURST = """
from cleanrl_operator.memory import give_back_free_pages

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

before = resident()
pieces = [bytes(2000) for _ in range(40_000)]  # more than pymalloc takes
taken = resident() - before
kept = pieces[::100]  # the last of them lies at the heap's end
del pieces
left = resident() - before
give_back_free_pages()
print(taken, left, resident() - before)
"""


READS = """
import resource, sys
from cleanrl_operator.memory import give_back_freed_memory

assert give_back_freed_memory()
kept = bytearray(1000)

def read():
    return bytes(b"x") + bytearray(256 << 10)[:1000]

read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(1000):
    read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such switch")
def test_the_buffer_of_a_read_is_not_mapped_in_anew_each_time() -> None:
    done = subprocess.run([sys.executable, "-c", READS], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 1000, "page faults of a thousand reads"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such switch")
def test_what_a_burst_took_is_given_back_from_between_what_stays() -> None:
    done = subprocess.run([sys.executable, "-c", BURST], check=True, capture_output=True, text=True)
    taken, left, given_back = (float(word) for word in done.stdout.split())
    assert taken > 70, "MiB: the pieces lie in the heap"
    assert left > 0.9 * taken, "the C library gives them back by itself: the test shows nothing"
    assert given_back < 0.2 * taken
