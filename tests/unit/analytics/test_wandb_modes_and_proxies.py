"""W&B: online with a key, else offline; proxies by precedence; no key outside the child's environment."""

from __future__ import annotations

import http.server
import json
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker import analytics, wandb_mode
from cleanrl_worker.wandb_mode import probe, resolve, resolve_proxies

KEY = "0123456789abcdef0123456789abcdef01234567"
ON = {"track_wandb": True}


@pytest.mark.parametrize(
    ("extras", "expected"),
    [
        ({}, False),
        ({"track_wandb": False}, False),
        ({"track_wandb": "false"}, False),
        ({"track_wandb": True}, True),
        ({"track": True}, True),
        ({"algo_params": {"track": True}}, True),
        ({"algo_params": "nonsense"}, False),
    ],
)
def test_a_config_asks_for_tracking_in_three_ways(extras: dict[str, Any], expected: bool) -> None:
    assert wandb_mode.wanted(extras) is expected


def test_off_means_that_nothing_waits_for_a_server(tmp_path: Path) -> None:
    plan = resolve({}, {"WANDB_API_KEY": KEY, "HTTPS_PROXY": "http://p:1"}, tmp_path, "r")
    assert (plan.enabled, plan.mode) == (False, "offline")
    assert plan.environment == {"WANDB_MODE": "offline"}


@pytest.mark.parametrize(
    ("extras", "environ", "mode"),
    [
        ({}, {}, "offline"),
        ({}, {"WANDB_API_KEY": KEY}, "online"),
        ({}, {"WANDB_API_KEY": "  "}, "offline"),
        ({"wandb_api_key": KEY}, {}, "online"),
        ({"wandb_api_key": "[redacted]"}, {}, "offline"),
        ({"wandb_api_key": KEY}, {"WANDB_MODE": "offline"}, "offline"),
        ({"wandb_api_key": KEY}, {"WANDB_MODE": "disabled"}, "disabled"),
    ],
)
def test_online_needs_a_key_and_the_users_mode_wins(
    extras: dict[str, Any], environ: dict[str, str], mode: str, tmp_path: Path
) -> None:
    plan = resolve({**ON, **extras}, environ, tmp_path, "r")
    assert plan.enabled
    assert plan.mode == plan.environment["WANDB_MODE"] == mode


def test_a_login_in_netrc_is_a_key(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    assert resolve(ON, {"NETRC": str(netrc)}, tmp_path, "r").mode == "online"
    elsewhere = {"NETRC": str(netrc), "WANDB_BASE_URL": "https://wandb.example.org"}
    assert resolve(ON, elsewhere, tmp_path, "r").mode == "offline"


def test_the_key_reaches_the_child_and_nothing_else(tmp_path: Path) -> None:
    plan = resolve({**ON, "wandb_api_key": KEY, "wandb_entity": "team"}, {}, tmp_path, "r")
    assert plan.environment["WANDB_API_KEY"] == KEY
    assert KEY not in repr(plan)
    assert KEY not in json.dumps(plan.manifest())
    assert not any(KEY in note for note in plan.notes)
    analytics.write_manifest(tmp_path, {"run_id": "r", "extras": {}}, wandb=plan.manifest())
    assert KEY not in (tmp_path / "analytics.json").read_text()


def test_the_environment_names_folders_project_and_a_run_that_the_next_attempt_continues(tmp_path: Path) -> None:
    extras = {**ON, "wandb_project_name": "p", "wandb_entity": "e", "wandb_run_name": "my run/1", "wandb_email": "a@b"}
    environment = resolve(extras, {"WANDB_API_KEY": KEY}, tmp_path, "r").environment
    assert environment["WANDB_DIR"] == str(tmp_path / "wandb")
    assert (environment["WANDB_PROJECT"], environment["WANDB_ENTITY"]) == ("p", "e")
    assert (environment["WANDB_NAME"], environment["WANDB_RUN_ID"]) == ("my run/1", "my-run-1")
    assert environment["WANDB_RESUME"] == "allow"
    assert resolve(ON, {}, tmp_path, "01JD").environment["WANDB_RUN_ID"] == "01JD"


ALL = {
    "WANDB_VPN_HTTPS_PROXY": "http://vpn:1",
    "WANDB_HTTPS_PROXY": "http://wandb:1",
    "HTTPS_PROXY": "http://upper:1",
    "https_proxy": "http://lower:1",
}


@pytest.mark.parametrize(
    ("extras", "without", "expected"),
    [
        ({"wandb_https_proxy": "http://extras:1"}, (), "http://extras:1"),
        ({"wandb_https_proxy": "  "}, (), "http://vpn:1"),
        ({"wandb_use_vpn_proxy": True}, (), "http://vpn:1"),
        ({"wandb_use_vpn_proxy": False}, (), "http://wandb:1"),
        ({}, ("WANDB_VPN_HTTPS_PROXY",), "http://wandb:1"),
        ({"wandb_use_vpn_proxy": True}, ("WANDB_VPN_HTTPS_PROXY", "WANDB_HTTPS_PROXY"), "http://upper:1"),
        (
            {"wandb_use_vpn_proxy": True},
            ("WANDB_VPN_HTTPS_PROXY", "WANDB_HTTPS_PROXY", "HTTPS_PROXY"),
            "http://lower:1",
        ),
        ({}, ("WANDB_VPN_HTTPS_PROXY", "WANDB_HTTPS_PROXY"), None),
    ],
)
def test_the_first_proxy_that_is_given_wins(
    extras: dict[str, Any], without: tuple[str, ...], expected: str | None
) -> None:
    environ = {name: value for name, value in ALL.items() if name not in without}
    environment, _ = resolve_proxies(extras, environ)
    for name in ("WANDB_HTTPS_PROXY", "HTTPS_PROXY", "https_proxy"):
        assert environment.get(name) == expected
    if expected is not None:
        assert {"127.0.0.1", "localhost", "::1"} <= set(environment["NO_PROXY"].split(","))


def test_exemptions_that_were_there_stay() -> None:
    environment, _ = resolve_proxies({"wandb_http_proxy": "http://p:1"}, {"no_proxy": ".svc, localhost"})
    assert environment["NO_PROXY"] == environment["no_proxy"] == ".svc,localhost,127.0.0.1,::1"


def test_a_proxys_password_is_not_in_the_sentence() -> None:
    _, note = resolve_proxies({"wandb_https_proxy": "http://user:hunter22@proxy.example:3128"}, {})
    assert note is not None
    assert "proxy.example:3128" in note
    assert "hunter22" not in note


def test_a_vpn_without_a_proxy_says_what_to_set() -> None:
    environment, note = resolve_proxies({"wandb_use_vpn_proxy": True}, {})
    assert environment == {}
    assert note is not None
    assert "WANDB_VPN_HTTPS_PROXY" in note


def test_the_manifest_names_runs_their_path_and_how_to_upload_them(tmp_path: Path) -> None:
    for name in ("run-20260101_000000-abc", "offline-run-20260102_000000-abc"):
        (tmp_path / "wandb" / "wandb" / name / "files").mkdir(parents=True)
    plan = resolve({**ON, "wandb_entity": "e", "wandb_project": "p"}, {}, tmp_path, "abc")
    analytics.write_manifest(tmp_path, {"run_id": "abc"}, wandb=plan.manifest())
    manifest = json.loads((tmp_path / "analytics.json").read_text())
    wandb = manifest["artifacts"]["wandb"]
    assert wandb["enabled"] is True
    assert wandb["mode"] == "offline"
    assert manifest["wandb_run_path"] == wandb["run_path"] == "e/p/abc"
    assert wandb["sync_command"] == "wandb sync wandb/wandb/offline-run-20260102_000000-abc"
    assert [run["offline"] for run in wandb["runs"]] == [True, False]


@pytest.mark.parametrize("base", ["https://wandb.ai", "http://10.0.0.1:8080", "https://example.org/tools/wandb"])
def test_an_online_runs_path_is_read_from_what_wandb_printed(tmp_path: Path, base: str) -> None:
    (tmp_path / "wandb" / "run-20260101_000000-abc").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "cleanrl.stderr.log").write_text(f"wandb: View run at {base}/team/cleanRL/runs/abc\n")
    analytics.write_manifest(tmp_path, {"run_id": "abc"}, wandb={"enabled": True, "mode": "online"})
    manifest = json.loads((tmp_path / "analytics.json").read_text())
    assert manifest["wandb_run_path"] == "team/cleanRL/abc"
    assert manifest["artifacts"]["wandb"]["url"] == f"{base}/team/cleanRL/runs/abc"


class _Answer(http.server.BaseHTTPRequestHandler):
    code = 200
    seen: list[tuple[str, str | None]] = []  # noqa: RUF012 - reset by the fixture

    def do_HEAD(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        self.send_response(self.code)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    _Answer.code, _Answer.seen = 200, []
    httpd = http.server.HTTPServer(("127.0.0.1", 0), _Answer)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


def test_the_probe_says_what_it_saw_and_sends_no_key(server: str) -> None:
    environ = {"WANDB_BASE_URL": f"http://{server}", "WANDB_API_KEY": KEY}
    assert probe(environ, {}) == (True, "127.0.0.1 answered 200.")
    _Answer.code = 404
    assert probe(environ, {}) == (True, "127.0.0.1 answered 404.")
    assert all(authorization is None for _, authorization in _Answer.seen)


def test_the_probe_goes_through_the_proxy_that_a_run_would_use(server: str) -> None:
    environ = {"WANDB_BASE_URL": "http://wandb.example"}
    reached, sentence = probe(environ, {"wandb_http_proxy": f"http://u:hunter22@{server}"})
    assert reached
    assert sentence == f"wandb.example answered 200 through {server}."
    assert _Answer.seen[0][0] == "http://wandb.example"
    _Answer.code = 407
    reached, sentence = probe(environ, {"wandb_http_proxy": f"http://{server}"})
    assert not reached
    assert "the proxy answered 407" in sentence


def test_the_probe_of_a_closed_door_names_the_cause() -> None:
    reached, sentence = probe(
        {"WANDB_BASE_URL": "http://127.0.0.1:9"}, {"wandb_http_proxy": "http://u:hunter22@127.0.0.1:9"}
    )
    assert not reached
    assert "could not be reached" in sentence
    assert "hunter22" not in sentence
    assert probe({"WANDB_BASE_URL": "file:///etc/passwd"}, {})[0] is False


def test_a_folders_name_is_no_command(tmp_path: Path) -> None:
    (tmp_path / "a; touch b" / "offline-run-20260102_000000-abc").mkdir(parents=True)
    analytics.write_manifest(tmp_path, {"run_id": "abc"})
    command = json.loads((tmp_path / "analytics.json").read_text())["artifacts"]["wandb"]["sync_command"]
    assert shlex.split(command) == ["wandb", "sync", "a; touch b/offline-run-20260102_000000-abc"]


@pytest.mark.parametrize(
    "said", [b"https://\xff/a/b/runs/abc", "https://\u00fc/a/b/runs/abc".encode(), b"https://\x1b[1m/a/b/runs/abc"]
)
def test_an_address_that_no_record_could_hold_is_none(said: bytes) -> None:
    assert wandb_mode.url_in(b"View run at " + said, "abc") is None
    assert wandb_mode.url_in(said + b" https://wandb.ai/a/b/runs/abc", "abc") == "https://wandb.ai/a/b/runs/abc"
