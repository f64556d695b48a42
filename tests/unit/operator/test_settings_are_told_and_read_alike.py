"""What `cleanrl-operator --help` lists is what the operator reads."""

from __future__ import annotations

import pytest
from cleanrl_operator.main import main
from cleanrl_operator.settings import Settings


def test_every_setting_is_listed_with_a_default_that_can_be_given_back() -> None:
    listed = dict(line.split("=", 1) for line in Settings.names())
    assert Settings.from_env(listed) == Settings()


@pytest.mark.parametrize("target", ["https://gateway:8443", "gateway", "gateway:"])
def test_an_address_that_no_worker_could_be_given_is_the_installations_fault_and_no_runs(target: str) -> None:
    with pytest.raises(ValueError, match="GATEWAY_TARGET has to be a host and a port"):
        Settings.from_env({"CLEANRL_OPERATOR_GATEWAY_TARGET": target})
    for good in ("", "gateway.cleanrl.svc:8443", "[::1]:8443"):
        assert Settings.from_env({"CLEANRL_OPERATOR_GATEWAY_TARGET": good}).gateway_target == good


def test_help_lists_them_and_a_slip_of_the_hand_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code in ((["--help"], 0), (["--namespcae=x"], 2)):
        monkeypatch.setattr("sys.argv", ["cleanrl-operator", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == code
    assert "CLEANRL_OPERATOR_LEASE_SECONDS=15" in capsys.readouterr().out
