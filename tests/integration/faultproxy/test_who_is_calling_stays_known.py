"""The server behind the proxy learns who called, and nobody can pretend to be someone else."""

from __future__ import annotations

RUN = "/api/v1/namespaces/a/pods/b"


def remote(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-remote-")}


def test_a_client_certificate_becomes_the_name_and_groups_that_it_carries(jane, upstream):
    assert jane("GET", RUN)[0] == 200
    assert upstream.seen[0][2]["x-remote-user"] == "jane"
    assert upstream.seen[0][2]["x-remote-group"] == "team-a, team-b"


def test_a_token_passes_and_the_certificate_is_not_mixed_in(jane, upstream):
    assert jane("GET", RUN, Authorization="Bearer token")[0] == 200
    assert upstream.seen[0][2]["authorization"] == "Bearer token"
    assert remote(upstream.seen[0][2]) == {}


def test_a_caller_can_not_name_itself(caller, jane, upstream):
    forged = {"X_Remote_User": "admin", "X_Remote_Group": "system:masters", "X_Remote_Extra_scopes": "all"}
    caller("GET", RUN, **forged)
    caller("GET", RUN, Authorization="Bearer token", **forged)
    jane("GET", RUN, **forged)
    assert [remote(headers).get("x-remote-user") for _, _, headers in upstream.seen] == [None, None, "jane"]
    assert all("admin" not in remote(headers).values() for _, _, headers in upstream.seen)
    assert all("x-remote-extra-scopes" not in headers for _, _, headers in upstream.seen)
