"""What can't be trained is refused before the first step, with exit code 2 and a sentence that says what to change."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from cleanrl_worker import link

VALUE = ("dqn", "c51", "pqn")
ACTOR = ("ddpg_continuous_action", "td3_continuous_action", "sac_continuous_action")
REPLAY = ("dqn", "c51", *ACTOR)

CASES = [
    *((algo, "--env-id Pendulum-v1", ["discrete actions", "use --algo"]) for algo in VALUE),
    *((algo, "--env-id CartPole-v1", ["continuous actions", "use --algo"]) for algo in ACTOR),
    *((algo, "--env-id Picture-v0", ["images", "use --algo"]) for algo in VALUE),
    *((algo, "--env-id PictureContinuous-v0", ["images"]) for algo in ACTOR),
    *((algo, "--env-id UnboundedContinuous-v0", ["finite bounds"]) for algo in ACTOR),
    *((algo, "--num-envs 2", ["--num-envs 1"]) for algo in ("dqn", "c51")),
    *((algo, "--num-envs 0", ["--num-envs"]) for algo in ("pqn", "td3_continuous_action", "sac_continuous_action")),
    *((algo, "--buffer-size 0", ["--buffer-size must be at least 1"]) for algo in REPLAY),
    *((algo, "--batch-size 0", ["--batch-size must be at least 1"]) for algo in REPLAY),
    *((algo, "--buffer-size 1000000000000", ["GiB", "Set --buffer-size to"]) for algo in REPLAY),
    ("dqn", "--train-frequency 0", ["--train-frequency must be at least 1"]),
    ("sac_continuous_action", "--policy-frequency 0", ["--policy-frequency must be at least 1"]),
    ("c51", "--n-atoms 1", ["--n-atoms"]),
    ("c51", "--v-min 5 --v-max 5", ["--v-min below --v-max"]),
    ("pqn", "--num-minibatches 3", ["--num-minibatches 3 does not divide"]),
    ("pqn", "--total-timesteps 511", ["at least 512"]),
]


@pytest.mark.parametrize(("algo", "flags", "words"), CASES, ids=[f"{a} {f}" for a, f, _ in CASES])
def test_refused(algo: str, flags: str, words: list[str], run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fits = "Pendulum-v1" if algo in ACTOR else "CartPole-v1"
    ended = run(algo, flags if "--env-id" in flags else f"--env-id {fits} {flags}")
    message = capsys.readouterr().err
    assert ended.exit_code == 2
    for word in words:
        assert word in message
    assert not list(ended.folder.glob("runs/*")), "a refused run leaves nothing behind"


@pytest.mark.parametrize("algo", REPLAY)
def test_a_run_too_short_to_learn_in_makes_its_steps_and_says_so(
    algo: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    fits = "Pendulum-v1" if algo in ACTOR else "CartPole-v1"
    flags = f"--env-id {fits} --total-timesteps 50 --learning-starts 50 --save-model"
    ended = run(algo, flags, **{link.ENV_FD: str(theirs.detach())})
    assert ended.exit_code == 0
    assert ended.checkpoint.step == 50
    with ours, ours.makefile() as lines:
        (finished,) = [fact for fact in map(json.loads, lines) if fact["kind"] == "finished"]
    assert "--learning-starts 50 leaves nothing" in finished["message"]


@pytest.mark.parametrize("algo", [*VALUE, *ACTOR])
def test_an_unknown_flag_is_refused(algo: str, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(algo, "--no-such-flag 3")
    assert ended.value.code == 2
    assert "no-such-flag" in capsys.readouterr().err
