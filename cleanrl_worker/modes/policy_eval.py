"""Evaluate a saved policy in batches: `python -m cleanrl_worker.launcher cleanrl_worker.modes.policy_eval --env-id ...`.

After each batch the run's folder holds `eval_summary.json` (the batch's figures, and those of all batches so far under
`overall`), `eval_episodes.csv` (a row per episode) and TensorBoard's `eval/...`. A batch is whole or not there: a run that is
stopped within one plays it again, with the same seeds, when it is continued.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanrl_worker.evals import EvalResult, Evaluation
from cleanrl_worker.fastlane.publisher import Publisher
from cleanrl_worker.link import ChildLink
from cleanrl_worker.modes.child import obey, supervised
from cleanrl_worker.runfolder import write_atomically
from cleanrl_worker.training.envs import video_folder
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.writer import EventWriter

SUMMARY = "eval_summary.json"
EPISODES = "eval_episodes.csv"
COLUMNS = ("batch", "episode", "return", "length", "discounted_return")
TELL_EVERY = 1.0
RECENT = 10_000
"""Episodes that a run without end remembers; the table on disk has them all."""
_SEEDS_APART = 1_000_003
"""Between the seeds of two batches: more than environments are ever seeded within one."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="policy_eval", description=__doc__.partition(":")[0], allow_abbrev=False)
    parser.add_argument("--algo", required=True, help="the algorithm that made the policy")
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--policy-path", type=Path, required=True, help="a model file, a checkpoint, or a run's folder")
    parser.add_argument("--sha256", help="the digest that the checkpoint or file must have")
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--batch-size", type=int, help="episodes per batch; all of them when not given")
    parser.add_argument("--repeat", action="store_true", help="one batch after the other, until stopped")
    parser.add_argument("--gamma", type=float, default=0.99, help="for the discounted returns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--greedy", action="store_true", help="always the best action, no exploration")
    parser.add_argument("--capture-video", action="store_true")
    parser.add_argument("--max-episode-steps", type=int)
    parser.add_argument("--max-episode-seconds", type=float)
    parser.add_argument("--view-size", type=int)
    parser.add_argument("--procedural-generation", action=argparse.BooleanOptionalAction, default=True)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    return supervised("policy_eval", lambda link: _Run(args, link).run())


@dataclass
class _Episode:
    batch: int
    ret: float
    length: int
    discounted: float


class _Run:
    def __init__(self, args: argparse.Namespace, link: ChildLink) -> None:
        self.args, self.link = args, link
        _check(args)
        self.batch_size = args.batch_size or args.episodes
        self.total = None if args.repeat else args.episodes
        environ = os.environ
        self.folder = Path(environ.get("CLEANRL_RUN_DIR") or Path.cwd())
        self.name = f"{environ.get('CLEANRL_RUN_ID') or 'policy'}-eval"
        self.episodes = self._earlier() if environ.get("CLEANRL_CONTINUE") == "1" else []
        """Those of all batches; of a run that repeats without end, the last ones."""
        self.played = len(self.episodes)
        self.batch = max((episode.batch for episode in self.episodes), default=0)
        directory = environ.get("CLEANRL_TENSORBOARD_DIR")
        self.writer = EventWriter(
            Path(directory) / self.name if directory else self.folder / "tensorboard" / self.name,
            enabled=environ.get("CLEANRL_TENSORBOARD") != "0",
        )
        self._playing = 0
        self._steps = 0
        self._began = self._told = time.monotonic()

    def run(self) -> int:
        args, link = self.args, self.link
        link.emit("hello", algo=args.algo, pid=os.getpid(), supports=["pause"])
        publisher = Publisher.from_env()
        options = {"procedural_generation": args.procedural_generation, "fixed_seed": args.seed}
        options |= {name: getattr(args, name) for name in ("max_episode_steps", "view_size") if getattr(args, name)}
        evaluation = Evaluation(
            args.policy_path,
            args.env_id,
            most_episodes=self.batch_size,
            algo=args.algo,
            sha256=args.sha256,
            greedy=args.greedy,
            gamma=args.gamma,
            video=video_folder(self.name) if args.capture_video else None,
            max_episode_seconds=args.max_episode_seconds,
            publisher=publisher,
            **options,
        )
        try:
            link.emit("training_started", step=self.played, resumed=self.played > 0)
            while self.total is None or self.played < self.total:
                self._play(evaluation)
        finally:
            evaluation.close()
            publisher.close()
            self.writer.close()
        overall = self._overall()
        result = {"mode": "policy_eval", "avg_return": overall.avg_return, "total_episodes": overall.episodes}
        self._tell(force=True)
        sentence = _sentence(overall)
        link.emit("finished", step=self.played, model=None, result=result, message=f"Evaluated: {sentence}.")
        print(f"policy_eval: {sentence}", flush=True)
        return 0

    def _play(self, evaluation: Evaluation) -> None:
        count = self.batch_size
        if self.total is not None:
            count = min(count, self.total - self.played)
        self.batch += 1
        began = time.monotonic()
        self._playing = 0
        seed = self.args.seed + (self.batch - 1) * _SEEDS_APART
        result = evaluation.play(count, seed, on_episode=self._on_episode, on_step=self._on_step)
        self._playing = 0
        self._keep(result, time.monotonic() - began)

    def _on_episode(self, number: int, _ret: float, _length: int) -> None:
        self._playing = number + 1

    def _on_step(self, count: int) -> None:
        self._steps += count
        if self.link.requests:
            obey(self.link, self.played)
        if time.monotonic() - self._told >= TELL_EVERY:
            self._tell()

    def _keep(self, result: EvalResult, seconds: float) -> None:
        """Write the batch down: episodes, then figures, then TensorBoard; then tell of it."""
        first = self.played
        new = [
            _Episode(self.batch, *row) for row in zip(result.returns, result.lengths, result.discounted, strict=True)
        ]
        with (self.folder / EPISODES).open("a") as file:
            file.write(_rows(new, first, header=file.tell() == 0))
        self.episodes += new
        self.played += len(new)
        if self.total is None:
            del self.episodes[:-RECENT]
        figures = {"batch_index": self.batch, **result.summary(), "duration_sec": seconds}
        shown = {**figures, "gamma": self.args.gamma, "greedy": self.args.greedy, "env_id": self.args.env_id}
        shown |= {"algo": self.args.algo, "policy_path": str(self.args.policy_path), "updated_at": time.time()}
        shown["overall"] = self._overall().summary()
        write_atomically(self.folder / SUMMARY, json.dumps(shown, indent=2) + "\n")
        for number, ret in enumerate(result.returns, first):
            self.writer.scalars({"eval/episode_return": ret}, number)
        tags = ("avg_return", "min_return", "max_return", "median_return", "std_return", "episodes", "duration_sec")
        values = {f"eval/{tag}": float(figures[tag]) for tag in tags}  # type: ignore[arg-type] # these are numbers
        if result.interval is not None:
            values |= {"eval/ci95_low": result.interval[0], "eval/ci95_high": result.interval[1]}
        self.writer.scalars(values, self.batch)
        self.writer.flush()
        self.link.emit("eval_batch", mode="policy_eval", **figures)
        self._tell(force=True)
        print(f"policy_eval: batch {self.batch}: {_sentence(result)}", flush=True)

    def _tell(self, force: bool = False) -> None:
        self._told = now = time.monotonic()
        done = self.played + self._playing
        if not done and not force:
            return
        values = {}
        if self.episodes:
            overall = self._overall()
            values = {"charts/episodic_return": overall.avg_return, "eval/avg_return": overall.avg_return}
            values["eval/median_return"] = overall.median_return
        rate = self._steps / max(now - self._began, 1e-9)
        self.link.emit("scalars", step=done, total=self.total, sps=rate, values=values, episodes=done)

    def _overall(self) -> EvalResult:
        rows = self.episodes
        return EvalResult([row.ret for row in rows], [row.length for row in rows], [row.discounted for row in rows])

    def _earlier(self) -> list[_Episode]:
        """The episodes of the batches that an earlier start finished. What it wrote of another one is cut off."""
        try:
            last = int(json.loads((self.folder / SUMMARY).read_text())["batch_index"])
            with (self.folder / EPISODES).open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if _whole(row) and int(row["batch"]) <= last]
        except FileNotFoundError:
            rows = []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadConfig(f"{SUMMARY} or {EPISODES} can't be read: {error}. Remove both to begin again.") from error
        episodes = [
            _Episode(int(r["batch"]), float(r["return"]), int(r["length"]), float(r["discounted_return"])) for r in rows
        ]
        write_atomically(self.folder / EPISODES, _rows(episodes, 0, header=True))
        return episodes


def _check(args: argparse.Namespace) -> None:
    for name in ("episodes", "batch_size", "max_episode_steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise BadConfig(f"--{name.replace('_', '-')} must be at least 1, not {value}.")
    if not 0 <= args.gamma <= 1:
        raise BadConfig(f"--gamma must be between 0 and 1, not {args.gamma}.")
    seconds = args.max_episode_seconds
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise BadConfig(f"--max-episode-seconds must be more than 0, not {seconds}.")


def _rows(episodes: list[_Episode], first: int, *, header: bool) -> str:
    """Lines of the table; numbers need no quoting."""
    rows = [
        (episode.batch, number, repr(episode.ret), episode.length, repr(episode.discounted))
        for number, episode in enumerate(episodes, first)
    ]
    return "".join(",".join(map(str, row)) + "\n" for row in ([COLUMNS, *rows] if header else rows))


def _whole(row: dict[str, Any]) -> bool:
    return all(row.get(name) for name in COLUMNS)


def _sentence(result: EvalResult) -> str:
    interval = result.interval
    shown = "" if interval is None else f", 95 % interval {interval[0]:.2f} to {interval[1]:.2f}"
    count = "1 episode" if result.episodes == 1 else f"{result.episodes} episodes"
    return (
        f"{count}, return {result.avg_return:.2f} (median {result.median_return:.2f}, "
        f"from {result.min_return:.2f} to {result.max_return:.2f}{shown})"
    )


if __name__ == "__main__":
    raise SystemExit(main())
