"""Does every algorithm for images learn? All of them on one small game of pictures, in minutes each.

    python tests/benchmarks/pictures.py [--only rainbow_atari ...] [--work build/pictures] [--page docs/benchmarks/pictures.md]

`chain_game.py` is the game: 8 points at best, 2 by chance. Each algorithm has to come past the middle, 5, in its last 20 games.
Flags are its own but for the sizes (few steps, small replay memories and rollouts), which its row names. What was trained is
kept in the work folder: a second call trains what is missing, and one that was cut off goes on.

ppo_atari_envpool_xla_jax_scan does not play: convolutions inside a compiled loop run at two steps a second on a CPU. What it
compiles into that loop is ppo_atari_envpool_xla_jax, which plays.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from chain_game import BEST, BY_CHANCE
from jobs import read_curve, stopping_together, train
from reporting import table_page

GAME = Path(__file__).with_name("chain_game.py")
WANTED = (BEST + BY_CHANCE) / 2
EPISODES = 20


@dataclass(frozen=True)
class Case:
    algo: str
    steps: int
    flags: tuple[str, ...]
    taught_by: str = ""
    """The algorithm whose finished run on the same game is the teacher."""

    def command(self, work: Path) -> list[str]:
        taught = ["--teacher-model-path", str(work / self.taught_by)] if self.taught_by else []
        return [str(GAME), self.algo, "--total-timesteps", str(self.steps), *self.flags, *taught]


SMALL_MEMORY = ("--learning-starts", "300", "--buffer-size", "5000", "--target-network-frequency", "200")
# Nobody sees how many steps a game still has, so at the usual gamma a value is off by points that are no action's doing.
EXPLORING = (*SMALL_MEMORY, "--exploration-fraction", "0.3", "--gamma", "0.9")
TAUGHT = (*EXPLORING, "--teacher-steps", "1500", "--teacher-eval-episodes", "5", "--offline-steps", "300")
ROLLOUTS = ("--num-envs", "8", "--num-steps", "32")

CASES = (
    Case("dqn_atari", 8_000, (*EXPLORING, "--save-model")),
    Case("dqn_atari_jax", 8_000, (*EXPLORING, "--save-model")),
    Case("c51_atari", 8_000, EXPLORING),
    Case("c51_atari_jax", 8_000, EXPLORING),
    Case("rainbow_atari", 8_000, SMALL_MEMORY),
    # Its own temperature begins at 1 and falls by a few thousandths an update: rewards would drown in it for all these steps.
    Case("sac_atari", 8_000, (*SMALL_MEMORY, "--no-autotune", "--alpha", "0.05")),
    Case("qdagger_dqn_atari_impalacnn", 1_500, TAUGHT, taught_by="dqn_atari"),
    # It starts from flax's initial weights, whose values are further apart than the teacher's: these are unlearned first.
    Case("qdagger_dqn_atari_jax_impalacnn", 2_500, TAUGHT, taught_by="dqn_atari_jax"),
    Case("ppo_atari", 12_000, ROLLOUTS),
    Case("ppo_atari_multigpu", 12_000, ("--local-num-envs", "8", "--num-steps", "32")),
    Case("ppo_atari_lstm", 12_000, ROLLOUTS),
    Case("ppo_atari_envpool", 12_000, ROLLOUTS),
    Case("ppo_atari_envpool_xla_jax", 12_000, ROLLOUTS),
    Case("ppo_pettingzoo_ma_atari", 12_000, ROLLOUTS),
    Case("ppo_rnd_envpool", 24_000, (*ROLLOUTS, "--num-iterations-obs-norm-init", "1")),
    Case("ppo_procgen", 8_192, ("--num-envs", "16", "--num-steps", "32")),
    Case("ppg_procgen", 8_192, ("--num-envs", "16", "--num-steps", "32", "--n-iteration", "4", "--e-auxiliary", "2")),
    Case("pqn_atari_envpool", 12_000, ROLLOUTS),
    Case("pqn_atari_envpool_lstm", 12_000, ROLLOUTS),
)


def play(case: Case, work: Path) -> list[str]:
    """Train, or take what is there: the row of the table."""
    folder = work / case.algo
    began = time.monotonic()
    if not (folder / "done").exists():
        train(case.command(work), folder)
        (folder / "done").write_text(f"{time.monotonic() - began:.0f}\n")
    returns = read_curve(folder)[1]
    last = float(np.mean(returns[-EPISODES:])) if len(returns) >= EPISODES else float("nan")
    first = float(np.mean(returns[:EPISODES])) if returns else float("nan")
    print(f"{case.algo:34} {first:5.2f} {last:5.2f}  {'yes' if last >= WANTED else 'NO'}", flush=True)
    flags = " ".join(case.flags)
    return [
        case.algo,
        f"{case.steps:,}",
        f"{first:.2f}",
        f"{last:.2f}",
        "yes" if last >= WANTED else "NO",
        f"`{flags}`",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=[case.algo for case in CASES], metavar="ALGORITHM")
    parser.add_argument("--work", type=Path, default=Path("build/pictures"))
    parser.add_argument("--page", type=Path, help="write the table here too, if all were played")
    args = parser.parse_args()
    work: Path = args.work.resolve()
    cases = [case for case in CASES if not args.only or case.algo in args.only]
    print(f"{'algorithm':34} first  last  past {WANTED:g}")
    with stopping_together():
        rows = [play(case, work) for case in cases]
    good = all(row[4] == "yes" for row in rows)
    print(f"{sum(row[4] == 'yes' for row in rows)} of {len(rows)} learned the game")
    if args.page and len(rows) == len(CASES):
        about = (
            f"A small game stands where the emulators are (`tests/benchmarks/chain_game.py`): {BEST:g} points at best, "
            f"{BY_CHANCE:g} by chance, learned when the last {EPISODES} games are past {WANTED:g}. It says that the algorithm "
            "learns from images, not how well it plays Atari. ppo_atari_envpool_xla_jax_scan is left out: on a CPU its "
            "compiled loop makes two steps a second; its learning is ppo_atari_envpool_xla_jax's. `python "
            "tests/benchmarks/pictures.py --page docs/benchmarks/pictures.md` trains all of them, one core, half an hour."
        )
        columns = ("algorithm", "steps", f"first {EPISODES} games", f"last {EPISODES}", "learned", "flags")
        args.page.write_text(table_page("Learning a game of pictures", about, columns, rows))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
