"""Each kind of fault, seen from both sides of a real proxy process."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from devcluster.faultproxy import FaultProxy, FaultProxyError

RUN = "/apis/mosaic.dev/v1alpha1/namespaces/team/cleanrlruns/one"
WATCH = "/apis/mosaic.dev/v1alpha1/cleanrlruns?watch=true"
GONE = (ConnectionError, http.client.RemoteDisconnected, http.client.IncompleteRead)


def test_without_a_rule_everything_passes(caller, upstream):
    assert caller("PATCH", RUN + "?fieldManager=a%2Fb", '{"a": 1}', Authorization="Bearer t") == (
        200,
        {"kind": "Echo", "method": "PATCH", "body": '{"a": 1}'},
    )
    method, path, headers = upstream.seen[0]
    assert (method, path) == ("PATCH", RUN + "?fieldManager=a%2Fb")
    assert headers["authorization"] == "Bearer t"


def test_an_error_strikes_as_often_as_told_and_looks_like_the_api_servers_own(proxy, caller, upstream):
    with proxy.fault(status=429, retry_after=7, method="PATCH", path="/cleanrlruns/", times=2) as fault:
        for _ in range(2):
            with caller.open("PATCH", RUN, "{}") as answer:
                assert answer.status == 429
                assert answer.headers["Retry-After"] == "7"
                status = json.load(answer)
                assert (status["kind"], status["reason"], status["code"]) == ("Status", "TooManyRequests", 429)
        assert caller("PATCH", RUN, "{}")[0] == 200
        assert caller("GET", RUN)[0] == 200
        assert fault.struck == 2
    assert fault.struck == 2
    assert len(upstream.seen) == 2


@pytest.mark.parametrize(("code", "reason"), [(409, "Conflict"), (500, "InternalError"), (503, "ServiceUnavailable")])
def test_other_errors_have_the_reasons_that_clients_look_for(proxy, caller, code, reason):
    with proxy.fault(status=code):
        status, body = caller("PUT", RUN, "{}")
    assert (status, body["reason"]) == (code, reason)


def test_a_cut_request_never_reaches_the_server(proxy, caller, upstream):
    with proxy.fault("cut", times=1) as fault, pytest.raises(GONE):
        caller("POST", RUN, "{}")
    assert fault.struck == 1
    assert upstream.seen == []
    assert caller("POST", RUN, "{}")[0] == 200


def test_a_lost_answer_was_carried_out(proxy, caller, upstream):
    with proxy.fault("lose-answer", verb="create"), pytest.raises(GONE):
        caller("POST", RUN, "{}")
    assert [method for method, _, _ in upstream.seen] == ["POST"]


def test_a_delayed_request_arrives_unchanged(proxy, caller, upstream):
    with proxy.fault(seconds=0.05) as fault:
        assert caller("PUT", RUN, "body")[1]["body"] == "body"
    assert fault.struck == 1


def test_a_watch_streams_each_event_as_it_happens(caller, upstream):
    with caller.open("GET", WATCH) as answer:
        for number in range(3):
            upstream.events(WATCH).put({"number": number})
            assert json.loads(answer.readline()) == {"number": number}
        upstream.events(WATCH).put(None)
        assert answer.readline() == b""


def test_a_watch_is_cut_after_some_events(proxy, caller, upstream):
    with proxy.fault("cut-stream", events=2, times=1):
        answer = caller.open("GET", WATCH)
        for number in range(3):
            upstream.events(WATCH).put({"number": number})
        assert [json.loads(answer.readline())["number"] for _ in range(2)] == [0, 1]
        with pytest.raises(GONE):
            answer.read1()


def test_a_watch_that_is_open_already_is_cut_at_once_and_others_are_spared(proxy, caller, upstream):
    struck = caller.open("GET", WATCH)
    assert upstream.watching.acquire(timeout=10)
    spared = caller.open("GET", "/api/v1/pods?watch=true")
    assert upstream.watching.acquire(timeout=10)
    with proxy.fault("cut-stream", path="/cleanrlruns") as fault:
        with pytest.raises(GONE):
            struck.read1()
        assert fault.struck == 1
    upstream.events("/api/v1/pods").put({"number": 1})
    assert json.loads(spared.readline()) == {"number": 1}
    spared.close()


def test_a_hanging_watch_says_nothing_and_goes_on_when_the_rule_ends(proxy, caller, upstream):
    answer = caller.open("GET", WATCH)
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.append(answer.readline()))
    with proxy.fault("hang", verb="watch") as fault:
        assert fault.struck == 1
        upstream.events(WATCH).put({"number": 1})
        reader.start()
        reader.join(0.5)
        assert lines == []
    reader.join(10)
    assert json.loads(lines[0]) == {"number": 1}
    answer.close()


def test_a_caller_that_leaves_ends_its_watch_upstream(proxy, caller, upstream):
    answer = caller.open("GET", WATCH)
    assert upstream.watching.acquire(timeout=10)
    answer.close()
    for _ in range(200):
        upstream.events(WATCH).put({"number": 0})
        if upstream.left.acquire(timeout=0.05):
            return
    pytest.fail("the watch upstream stayed open")


def test_an_outage_takes_open_watches_and_new_requests_and_ends(proxy, caller, upstream):
    watch = caller.open("GET", WATCH)
    assert upstream.watching.acquire(timeout=10)
    with proxy.outage():
        with pytest.raises(GONE):
            watch.read1()
        for method in ("GET", "PATCH", "DELETE"):
            with pytest.raises(GONE):
                caller(method, RUN)
    assert caller("GET", RUN)[0] == 200


def test_a_rule_stops_by_itself_when_told_how_long_it_lasts(proxy, caller):
    fault = proxy.add("outage", lasts=0.2)
    while not fault.over:
        with contextlib.suppress(*GONE):
            caller("GET", RUN)
    struck = fault.struck
    assert caller("GET", RUN)[0] == 200
    assert fault.struck == struck
    fault.remove()


def test_the_proxy_ends_with_the_process_that_started_it(pki, upstream):
    code = (
        "import os, sys; from pathlib import Path; from devcluster.faultproxy import FaultProxy\n"
        f"pki = Path({str(pki)!r})\n"
        f"proxy = FaultProxy.start(upstream={upstream.url!r}, certificate=pki / 'server.crt', key=pki / 'server.key',"
        " upstream_ca=pki / 'ca.crt')\n"
        "print(proxy.url.rpartition(':')[2], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    port = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    pytest.fail("the proxy outlived the process that started it")


def test_a_server_that_is_not_there_is_told_as_a_bad_gateway(upstream, pki, caller):
    with FaultProxy.start(
        upstream="https://127.0.0.1:1",
        certificate=pki / "server.crt",
        key=pki / "server.key",
        upstream_ca=pki / "ca.crt",
    ) as alone:
        caller.host = alone.url.removeprefix("https://")
        status, body = caller("GET", RUN)
    assert status == 502
    assert "does not answer" in body["message"]


def test_exec_and_port_forward_are_refused_with_a_sentence(caller, upstream):
    status, body = caller("POST", "/api/v1/namespaces/a/pods/b/exec", Connection="Upgrade", Upgrade="SPDY/3.1")
    assert status == 501
    assert "kubeconfig" in body["message"]
    assert upstream.seen == []


def test_a_bad_rule_is_refused_with_a_sentence(proxy):
    with pytest.raises(FaultProxyError, match="status must be from 400 to 599"), proxy.fault(status=42):
        pass
    assert proxy.rules() == []


def test_the_seed_is_told_and_repeats_the_chances(proxy, caller):
    assert proxy.seed == 5
    with proxy.fault(status=500, probability=0.5) as fault:
        first = [caller("GET", RUN)[0] for _ in range(16)]
    assert 0 < fault.struck < fault.matched == 16
    assert first.count(500) == fault.struck


def test_a_taken_port_is_one_sentence_and_a_failure(proxy, pki, upstream):
    taken = proxy.url.removeprefix("https://")
    answer = subprocess.run(
        [sys.executable, "-m", "devcluster.faultproxy", "--listen", taken, "--upstream", upstream.url,
         "--ca", pki / "ca.crt", "--cert", pki / "server.crt", "--key", pki / "server.key", "--control-port", "0"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.startswith(f"the fault proxy can't serve on {taken}: ")
    assert "Traceback" not in answer.stderr
