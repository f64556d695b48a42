"""Play a saved policy step by step, told by JSON lines on stdin and answering with JSON lines on stdout.

    {"cmd": "reset", "seed": 7}   -> {"type": "ready", ...}
    {"cmd": "step"}               -> {"type": "step", ...}, before it {"type": "episode_done", ...} when an episode ended
    {"cmd": "init"}               -> {"type": "init", ...} once more, for who has joined later
    {"cmd": "ping"}               -> {"type": "pong"}
    {"cmd": "stop"}               -> {"type": "stopped"}, and the end; so is the end of stdin

The first line is `{"type": "init", ...}`. Whatever else comes in is answered by `{"type": "error", "message"}`, and the loop
goes on: nothing that can be sent ends it but `stop`. Every line that leaves by stdout has a `type`; events of the supervisor,
which have an `event` instead, go to stderr in this mode, and so does whatever a library prints.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.link import ChildLink
from cleanrl_worker.modes.child import supervised
from cleanrl_worker.training.errors import RunEnded, Stopped

VERSION = "1.0"
MAX_LINE = 64 * 1024
"""No command is this long: a longer line is refused without being kept."""
_POLL_SECONDS = 0.2


class ProtocolError(Exception):
    """What was asked can't be done; the message is the answer."""


class Session:
    """The protocol without its wires: `answer` takes one line and gives the messages it is answered with."""

    def __init__(
        self,
        run_id: str,
        env_id: str,
        algo: str,
        policy_path: Path,
        *,
        sha256: str | None = None,
        greedy: bool = False,
        frames: bool = True,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.run_id, self.env_id, self.algo, self.policy_path = run_id, env_id, algo, policy_path
        self.sha256, self.greedy, self.frames = sha256, greedy, frames
        self.options = options or {}
        self.stopped = False
        self._envs: Any = None
        self._policy: Any = None
        self._rng = np.random.default_rng()
        self._ready = False
        self._seed = 0
        self._step = self._episode = 0
        self._reward = 0.0

    def hello(self) -> dict[str, Any]:
        named = {"run_id": self.run_id, "env_id": self.env_id, "algo": self.algo}
        return {"type": "init", **named, "policy_path": str(self.policy_path), "version": VERSION}

    def answer(self, line: bytes) -> list[dict[str, Any]]:
        """Never raises for what the line says, nor for what the environment or the policy make of it."""
        try:
            return self._answer(line)
        except (ProtocolError, RunEnded) as error:
            return [_error(str(error))]
        except Exception as error:  # noqa: BLE001 - environments are foreign code, and the player decides what to do next
            self._ready = False
            return [_error(f"{type(error).__name__}: {error}; send reset to begin again")]

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    def _answer(self, line: bytes) -> list[dict[str, Any]]:
        if not line.strip():
            return []
        message = _parse(line)
        match message.get("cmd"):
            case "reset":
                return [self._reset(message.get("seed"))]
            case "step":
                return self._advance()
            case "init":
                return [self.hello()]
            case "ping":
                return [{"type": "pong"}]
            case "stop":
                self.stopped = True
                return [{"type": "stopped"}]
            case other:
                raise ProtocolError(f"Unknown command: {_short(other)}")

    def _reset(self, seed: Any) -> dict[str, Any]:
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
            raise ProtocolError(f"seed must be a whole number from 0 to {2**31 - 1}, got {_short(seed)}")
        self._ready = False
        if self._policy is None:
            self._load()
        self._envs.reset(seed)
        self._rng = np.random.default_rng(seed)
        self._seed, self._step, self._episode, self._reward, self._ready = seed, 0, 0, 0.0, True
        return {
            "type": "ready",
            "run_id": self.run_id,
            "env_id": self.env_id,
            "algo": self.algo,
            "seed": seed,
            "observation_shape": list(self._envs.obs_shape),
            "step_index": 0,
            "episode_index": 0,
            "episode_reward": 0.0,
            **self._picture(),
        }

    def _load(self) -> None:
        from cleanrl_worker.evals import fit, playing_envs, read_saved

        saved = read_saved(self.policy_path, algo=self.algo, env_id=self.env_id, sha256=self.sha256)
        envs = playing_envs(self.env_id, 1, render=self.frames, mission=saved.shows_mission, **self.options)
        try:
            policy = fit(saved, envs, algo=self.algo)
            if policy.normaliser is not None:
                envs.use_normaliser(policy.normaliser)
        except BaseException:
            envs.close()
            raise
        self._envs, self._policy = envs, policy

    def _advance(self) -> list[dict[str, Any]]:
        from cleanrl_worker.training.envs import is_minigrid

        if not self._ready:
            raise ProtocolError("Environment not initialized. Send reset first.")
        envs = self._envs
        actions = self._policy(envs.obs, envs.starts, self._rng, self.greedy)
        step = envs.step(actions)
        self._step += 1
        self._reward += float(step.rewards[0])
        taken = {
            "type": "step",
            "step_index": self._step,
            "episode_index": self._episode,
            "action": _plain(actions[0]),
            "reward": _plain(step.rewards[0]),
            "terminated": bool(step.terminated[0]),
            "truncated": bool(step.truncated[0]),
            "episode_reward": _plain(self._reward),
        }
        if not step.episodes:
            return [{**taken, **self._picture()}]
        _, ret, length, *_ = step.episodes[0]
        self._episode += 1
        done = {"type": "episode_done", "total_reward": _plain(ret), "episode_length": length}
        done["episode_number"] = self._episode
        self._step, self._reward = 0, 0.0
        if is_minigrid(self.env_id):  # the same level again
            envs.reset(self._seed)
        return [done, {**taken, **self._picture()}]

    def _picture(self) -> dict[str, Any]:
        """What there is to see where the next action starts; nothing for environments that can't draw."""
        if not self.frames:
            return {}
        from cleanrl_worker.fastlane.frames import as_image

        try:
            image = as_image(self._envs.render((0,))[0])
        except Exception as error:  # noqa: BLE001 - no display, no OpenGL: the policy can be played without
            self.frames = False
            print(f"interactive: no frames: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return {}
        if image is None:
            return {}
        height, width = image.shape[:2]
        payload = {"mode": "rgb_array", "rgb": image[:, :, :3].tolist(), "width": width, "height": height}
        return {"render_payload": payload}


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"Invalid JSON: {_short(str(error))}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"Invalid JSON: expected an object, got {_short(message)}")
    return message


def _error(message: str) -> dict[str, Any]:
    return {"type": "error", "message": message}


def _plain(value: Any) -> Any:
    """A number or a vector as JSON has them; what is not finite becomes null."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(item) for item in value]
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:197]}..."


# ---------------------------------------------------------------- wires


def read_lines(descriptor: int, link: ChildLink) -> Iterator[bytes | None]:
    """Lines from a descriptor until it ends. None stands for a line that was too long. Raises Stopped on request."""
    pending, skipping = b"", False
    while True:
        while link.requests:
            _obey(link, link.requests.popleft().get("cmd"))
        if not select.select([descriptor], [], [], _POLL_SECONDS)[0]:
            continue
        data = os.read(descriptor, MAX_LINE)
        if not data:
            if pending and not skipping:
                yield pending
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            yield None if skipping or len(line) > MAX_LINE else line
            skipping = False
        if len(pending) > MAX_LINE:
            pending, skipping = b"", True
        elif skipping:
            pending = b""


def _obey(link: ChildLink, command: Any) -> None:
    """A pause needs nothing but to be confirmed: nobody steps but the player."""
    if command == "stop":
        link.emit("stopped", step=None, checkpoint=None)
        raise Stopped("stopped as requested")
    if command in ("pause", "resume"):
        link.emit(f"{command}d", step=None, checkpoint=None)


def converse(session: Session, link: ChildLink, stdin: int, stdout: int) -> int:
    """The loop. Returns the number of commands that were answered."""
    answered = 0
    try:
        _write(stdout, session.hello())
        for line in read_lines(stdin, link):
            replies = [_error(f"Line longer than {MAX_LINE} bytes")] if line is None else session.answer(line)
            for reply in replies:
                _write(stdout, reply)
            answered += bool(replies)
            if session.stopped:
                break
    except BrokenPipeError:
        print("interactive: nobody reads the answers any more", file=sys.stderr, flush=True)
    finally:
        session.close()
    return answered


def _write(descriptor: int, message: dict[str, Any]) -> None:
    data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="interactive", description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--algo", required=True)
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--policy-path", type=Path, required=True)
    parser.add_argument("--sha256")
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--frames", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--max-episode-steps", type=int)
    parser.add_argument("--view-size", type=int)
    parser.add_argument("--procedural-generation", action=argparse.BooleanOptionalAction, default=True)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    options = {"procedural_generation": args.procedural_generation}
    options |= {name: getattr(args, name) for name in ("max_episode_steps", "view_size") if getattr(args, name)}
    session = Session(
        args.run_id,
        args.env_id,
        args.algo,
        args.policy_path,
        sha256=args.sha256,
        greedy=args.greedy,
        frames=args.frames,
        options=options,
    )

    # Whatever a library prints must not get between the answers.
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        return supervised("interactive", lambda link: _play(session, link, stdout))
    finally:
        os.close(stdout)


def _play(session: Session, link: ChildLink, stdout: int) -> int:
    link.emit("hello", algo=session.algo, pid=os.getpid(), supports=["pause"])
    answered = converse(session, link, 0, stdout)
    result = {"mode": "interactive", "commands": answered}
    message = f"The conversation is over; commands answered: {answered}."
    link.emit("finished", step=answered, model=None, result=result, message=message)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
