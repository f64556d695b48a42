"""The demo tells people to point KUBECONFIG at its own cluster: that must not turn it into somebody else's."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import demo
import picture
import pytest

from devcluster import Cluster


def test_a_kubeconfig_of_the_users_is_the_users_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert not demo.has_own_cluster()
    monkeypatch.setenv("KUBECONFIG", "")
    assert not demo.has_own_cluster()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert demo.has_own_cluster()


def test_the_line_that_the_demo_prints_leads_back_to_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(Cluster(demo.CLUSTER).kubeconfig))
    assert not demo.has_own_cluster()


def test_a_picture_shows_what_stood_on_the_terminal_in_the_end() -> None:
    transcript = (
        "Script started on x\nfirst\r\n\r\x1b[K 10 %\r\x1b[K 90 %\r\x1b[Kdone <1>\r\n\n\nWhat to look at next:\n"
    )
    assert picture.shown(transcript, "What to look") == ["first", "done <1>"]
    assert "done &lt;1&gt;" in picture.drawn(["done <1>"])


def test_the_curve_asks_briefly_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has ended answers no more, and what the status holds of it is older than what was seen."""
    asked: list[tuple[str, ...]] = []
    answers = iter(["cleanrl_worker_progress_ratio 0.9\ncleanrl_worker_rolling_return 200", None])

    def kubectl(*arguments: str) -> str:
        asked.append(arguments)
        answer = next(answers)
        if answer is None:
            raise demo.Refused("no answer")
        return answer

    tools = demo.Tools({}, None, {"kubectl": Path("kubectl"), "helm": Path("helm")})
    monkeypatch.setattr(tools, "kubectl", kubectl)
    curve = demo.Curve(tools)
    status = {"podName": "p", "progress": {"percent": 60, "episodicReturn": 150.0}}
    assert "90%" in curve.look(status)
    assert curve.look(status) == ""
    assert curve.returns == [200.0]
    assert all(f"--request-timeout={demo.METRICS_SECONDS}s" in arguments for arguments in asked)


def test_the_live_curve_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = demo.Tools({}, None, {"kubectl": Path("kubectl"), "helm": Path("helm")})
    monkeypatch.setattr(demo, "columns", lambda _: 59)
    curve = demo.Curve(tools)
    curve.returns = [float(number) for number in range(200)]
    monkeypatch.setattr(curve, "_metrics", lambda _: {"progress_ratio": 0.5, "rolling_return": 200.0})
    line = curve.look({"podName": "p"})
    assert len(line) <= 59
    assert line.endswith("█ 200")


def test_a_cluster_without_the_images_is_told_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = demo.Tools({"KUBECONFIG": "x"}, None, {"kubectl": Path("kubectl"), "helm": Path("helm")})
    said = "ImagePullBackOff localhost/cleanrl-operator:0.1.0"
    monkeypatch.setattr(tools, "kubectl", lambda *_: said)
    with pytest.raises(demo.Refused, match=r"can't get the image localhost/cleanrl-operator:0.1.0.*\n.*--values FILE"):
        demo.look_at_the_operator(tools, demo.HINT_SECONDS + 1)
    said += "\nContainerCreating registry/cleanrl-operator:0.1.0"
    demo.look_at_the_operator(tools, demo.HINT_SECONDS + 1)  # its successor is on the way
    with pytest.raises(demo.Refused, match="has not seen the run"):
        demo.look_at_the_operator(tools, demo.PATIENCE_SECONDS + 1)


@pytest.mark.parametrize("content", [None, "clusters: ["])
def test_a_kubeconfig_that_leads_nowhere_is_said_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    named = tmp_path / "config"
    if content is not None:
        named.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(named))
    monkeypatch.setattr(demo, "programs", lambda: {"kubectl": Path("/bin/false"), "helm": Path("/bin/false")})
    with pytest.raises(demo.Refused, match=rf"KUBECONFIG={named} leads to no cluster .*`unset KUBECONFIG`"):
        demo.Tools.own()


def test_lines_to_copy_survive_a_home_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = Path("/home/a b/kubectl")
    environment = {"KUBECONFIG": "/home/a b/kubeconfig"}
    tools = demo.Tools(environment, Cluster(demo.CLUSTER), {"kubectl": kubectl, "helm": Path("helm")})
    assert shlex.split(tools.line("get", "pods")) == [
        f"KUBECONFIG={environment['KUBECONFIG']}",
        str(kubectl),
        "get",
        "pods",
    ]
    alias = next(line for line in demo.what_next(tools, {}).splitlines() if "alias" in line)
    ((_, meaning),) = [word.split("=", 1) for word in shlex.split(alias)[1:]]
    assert shlex.split(meaning) == [str(kubectl)], "the shell reads an alias once more"


def test_a_run_that_somebody_deletes_meanwhile_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = demo.Tools({}, None, {"kubectl": Path("kubectl"), "helm": Path("helm")})
    monkeypatch.setattr(tools, "kubectl", lambda *_: "")
    with pytest.raises(demo.Refused, match="was deleted meanwhile, by another demo"):
        tools.status()


def test_what_keeps_a_runs_folder_open_is_none_of_its_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kubectl logs -l mosaic.dev/run=NAME -c worker` fails for all of them if one has no worker."""
    applied: list[str] = []

    def kubectl(*arguments: str, stdin: str | None = None) -> str:
        applied.extend([stdin] if stdin else [])
        return '{"status": {"runId": "r"}}' if "json" in arguments else "x"

    tools = demo.Tools({}, None, {"kubectl": Path("kubectl"), "helm": Path("helm")})
    monkeypatch.setattr(tools, "kubectl", kubectl)
    demo.open_the_claim(tools)
    assert not any("mosaic.dev/run" in pod for pod in applied)
    assert applied


def test_a_reader_that_has_seen_enough_ends_the_demo_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `make demo | head` does."""

    def say(*_: object) -> int:
        raise BrokenPipeError

    let_go: list[bool] = []
    monkeypatch.setattr(sys, "argv", ["demo.py", "--down"])
    monkeypatch.setattr(demo, "take_down", say)
    monkeypatch.setattr(demo, "nobody_reads", lambda: let_go.append(True))
    assert demo.main() == 130
    assert let_go
    assert "`make demo-down` removes it" in capsys.readouterr().err


def test_a_terminal_without_the_curves_blocks_shows_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--down"])
    monkeypatch.setattr(demo, "take_down", lambda: demo.say(f"{demo.demo_local.curve([1.0, 2.0], 40)} 206\n") or 0)
    assert demo.main() == 0
    assert written.getvalue() == b"?? 206\n"


def test_values_that_are_not_there_are_refused_before_a_cluster_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo.py", "--values", "FILE"])
    monkeypatch.setattr(demo, "has_own_cluster", lambda: pytest.fail("nothing is looked at"))
    with pytest.raises(SystemExit):
        demo.main()
    assert "--values FILE is no file" in capsys.readouterr().err
