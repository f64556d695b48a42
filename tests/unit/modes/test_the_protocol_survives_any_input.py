"""Interactive mode: each command has its answer, and nothing that can be sent ends the loop but `stop`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cleanrl_worker.agents.minigrid import MinigridAgent
from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.link import ChildLink
from cleanrl_worker.modes.interactive import MAX_LINE, Session, converse


def saved(path: Path, weights: Any) -> Path:
    torch.save(weights, path)
    return path


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "ppo.cleanrl_model", MLPAgent(4, 2).state_dict())


def session(path: Path, env_id: str = "CartPole-v1", algo: str = "ppo", **options: Any) -> Session:
    return Session("run", env_id, algo, path, frames=options.pop("frames", False), **options)


def ask(talk: Session, **command: Any) -> list[dict[str, Any]]:
    return talk.answer(json.dumps(command).encode())


def test_a_conversation_has_its_promised_form(cartpole: Path) -> None:
    talk = session(cartpole)
    hello = {"type": "init", "run_id": "run", "env_id": "CartPole-v1", "algo": "ppo"}
    assert talk.hello() == {**hello, "policy_path": str(cartpole), "version": "1.0"}
    assert ask(talk, cmd="step") == [{"type": "error", "message": "Environment not initialized. Send reset first."}]
    (ready,) = ask(talk, cmd="reset", seed=5)
    assert ready == {
        "type": "ready",
        "run_id": "run",
        "env_id": "CartPole-v1",
        "algo": "ppo",
        "seed": 5,
        "observation_shape": [4],
        "step_index": 0,
        "episode_index": 0,
        "episode_reward": 0.0,
    }
    (step,) = ask(talk, cmd="step")
    assert step == {
        "type": "step",
        "step_index": 1,
        "episode_index": 0,
        "action": step["action"],
        "reward": 1.0,
        "terminated": False,
        "truncated": False,
        "episode_reward": 1.0,
    }
    assert step["action"] in (0, 1)
    assert ask(talk, cmd="ping") == [{"type": "pong"}]
    assert ask(talk, cmd="stop") == [{"type": "stopped"}]
    assert talk.stopped


def test_an_episodes_end_is_told_before_its_last_step(cartpole: Path) -> None:
    talk = session(cartpole)
    ask(talk, cmd="reset", seed=5)
    replies, count = ask(talk, cmd="step"), 1
    while len(replies) == 1:
        replies, count = ask(talk, cmd="step"), count + 1
    done, step = replies
    assert done == {
        "type": "episode_done",
        "total_reward": float(count),
        "episode_length": count,
        "episode_number": 1,
    }
    assert (step["type"], step["step_index"], step["episode_index"]) == ("step", count, 0)
    assert step["terminated"]
    (following,) = ask(talk, cmd="step")
    assert (following["step_index"], following["episode_index"], following["episode_reward"]) == (1, 1, 1.0)


def test_the_same_seed_plays_the_same_episode(cartpole: Path) -> None:
    traces = []
    for _ in range(2):
        talk = session(cartpole)
        ask(talk, cmd="reset", seed=11)
        traces.append([ask(talk, cmd="step") for _ in range(30)])
    assert traces[0] == traces[1]


def test_minigrid_plays_the_same_level_again_and_shows_it(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", MinigridAgent(7).state_dict())
    options = {"max_episode_steps": 3}
    talk = session(path, "MiniGrid-FourRooms-v0", frames=True, options=options)
    (first,) = ask(talk, cmd="reset", seed=7)
    payload = first["render_payload"]
    assert (payload["mode"], len(payload["rgb"]), len(payload["rgb"][0])) == (
        "rgb_array",
        payload["height"],
        payload["width"],
    )
    *_, (done, last) = [ask(talk, cmd="step") for _ in range(3)]
    assert done["episode_length"] == 3
    assert last["render_payload"] == payload, "the next episode begins where the first one did"


def test_continuous_actions_are_lists(tmp_path: Path) -> None:
    state: dict[str, torch.Tensor] = {"actor_logstd": torch.zeros(1, 1)}
    for name, inputs, outputs in (("actor_mean.0", 3, 64), ("actor_mean.2", 64, 64), ("actor_mean.4", 64, 1)):
        state |= {f"{name}.{key}": value for key, value in nn.Linear(inputs, outputs).state_dict().items()}
    talk = session(saved(tmp_path / "m", state), "Pendulum-v1", "ppo_continuous_action")
    ask(talk, cmd="reset", seed=1)
    (step,) = ask(talk, cmd="step")
    assert isinstance(step["action"], list)
    assert isinstance(step["action"][0], float)


def test_a_missing_policy_is_an_answer_and_can_be_put_right(tmp_path: Path) -> None:
    talk = session(tmp_path / "m")
    (error,) = ask(talk, cmd="reset")
    assert error["type"] == "error"
    assert "does not exist" in error["message"]
    saved(tmp_path / "m", MLPAgent(4, 2).state_dict())
    assert ask(talk, cmd="reset")[0]["type"] == "ready"


def test_an_environment_that_breaks_is_an_answer(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = session(cartpole)
    ask(talk, cmd="reset", seed=1)

    def broken(*_: Any) -> Any:
        raise RuntimeError("the pole fell off")

    with monkeypatch.context() as patch:
        patch.setattr(gym.envs.classic_control.CartPoleEnv, "step", broken)
        (error,) = ask(talk, cmd="step")
    assert error["message"] == "RuntimeError: the pole fell off; send reset to begin again"
    assert ask(talk, cmd="reset", seed=1)[0]["type"] == "ready"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense", "Invalid JSON: Expecting value"),
        (b"\xff\xfe\x00", "Invalid JSON: "),
        (b"[" * 100_000, "Invalid JSON: "),
        (b"[1, 2]", "Invalid JSON: expected an object"),
        (b'{"cmd": "fly"}', "Unknown command: fly"),
        (b'{"cmd": ["reset"]}', 'Unknown command: ["reset"]'),
        (b"{}", "Unknown command: null"),
        (b'{"cmd": "reset", "seed": "x"}', "seed must be a whole number"),
        (b'{"cmd": "reset", "seed": true}', "seed must be a whole number"),
        (b'{"cmd": "reset", "seed": 99999999999999999999}', "seed must be a whole number"),
    ],
)
def test_what_is_wrong_is_said(line: bytes, message: str, cartpole: Path) -> None:
    (reply,) = session(cartpole).answer(line)
    assert reply["type"] == "error"
    assert message in reply["message"]


def talk_over_pipes(path: Path, data: bytes) -> list[dict[str, Any]]:
    """Everything that comes back for these bytes, through real descriptors."""
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb") as out:
        pid = os.fork()
        if pid == 0:  # the writer: a pipe holds less than a test may send
            os.close(ours)
            out.write(data)
            out.flush()
            os._exit(0)
    answers = path.with_suffix(".answers")
    with answers.open("wb") as file:
        converse(session(path), ChildLink(None), ours, file.fileno())
    os.close(ours)
    os.waitpid(pid, 0)
    lines = answers.read_bytes().split(b"\n")
    assert lines[-1] == b""
    return [json.loads(line) for line in lines[:-1]]


def test_a_line_without_end_is_refused_and_forgotten(cartpole: Path) -> None:
    data = b"x" * (3 * MAX_LINE) + b'\n{"cmd":"ping"}\n' + b"y" * (2 * MAX_LINE)
    types = [reply["type"] for reply in talk_over_pipes(cartpole, data)]
    assert types == ["init", "error", "pong"]


def test_the_end_of_input_is_the_end(cartpole: Path) -> None:
    assert [reply["type"] for reply in talk_over_pipes(cartpole, b'{"cmd":"ping"}')] == ["init", "pong"]


words = st.sampled_from(["reset", "step", "ping", "fly", "", "stop "])
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.lists(st.integers())
commands = st.dictionaries(st.sampled_from(["cmd", "seed", "x"]), words | values).map(lambda d: json.dumps(d).encode())
garbage = st.binary(max_size=200).map(lambda data: data.replace(b"\n", b""))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(commands | garbage, max_size=12))
def test_any_bytes_are_answered_and_the_loop_lives(lines: list[bytes], cartpole: Path) -> None:
    talk = session(cartpole)
    for line in lines:
        for reply in talk.answer(line):
            assert reply["type"] in ("ready", "step", "episode_done", "pong", "error")
            json.dumps(reply, allow_nan=False)
    assert not talk.stopped
    assert ask(talk, cmd="ping") == [{"type": "pong"}]
    talk.close()
