"""Learning on images, at sizes that two cores allow: does the curve go where it should?

    python tests/benchmarks/learning.py [--only ppo_atari:PongNoFrameskip-v4] [--seeds 1] [--work build/learning] [--jobs 1]

Takes a day. Each finished seed becomes a record in docs/benchmarks/records/learning/ (see `records.py`) and is not trained
again; one that was cut off continues from its checkpoint in the work folder. The table (Markdown) and the curves (PNG) in
docs/benchmarks/ are generated from the records; `--seeds 0` only does that. A target that was missed is shown as missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jobs import read_curve, train
from records import Record, Records, options, origins, trailing_mean, work_through

WORK = Path("build/learning")
RETURN = "charts/episodic_return"
TEACHER = "charts/teacher/avg_episodic_return"
Curve = tuple[list[int], list[float]]
Read = Callable[[str], Curve]
"""The curve of a tag."""
Figures = dict[str, float]


def last_mean(read: Read, count: int) -> float:
    """The mean return of the last so many episodes."""
    return float(np.mean(read(RETURN)[1][-count:]))


@dataclass(frozen=True)
class LastEpisodes:
    """The mean of the last `count` episodes reaches `least`."""

    count: int
    least: float
    tag: str = RETURN

    @property
    def words(self) -> str:
        return f"last {self.count} episodes at least {self.least:g}"

    def measure(self, read: Read, _steps: int) -> Figures:
        return {"last": last_mean(read, self.count)}

    def found(self, figures: Figures) -> str:
        return f"{figures['last']:.2f}"

    def met(self, figures: Figures) -> bool:
        return figures["last"] >= self.least


@dataclass(frozen=True)
class Tenths:
    """The last tenth lies above (1) or below (-1) the first tenth, by more than the 95 % interval of the difference."""

    sign: int
    tag: str = RETURN

    @property
    def words(self) -> str:
        return f"last tenth {'above' if self.sign > 0 else 'below'} first tenth"

    def measure(self, read: Read, steps: int) -> Figures:
        at, values = map(np.asarray, read(self.tag))
        first, last = values[at <= steps / 10], values[at > steps * 0.9]
        half = 1.96 * float(np.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last)))
        return {"first_tenth": float(first.mean()), "last_tenth": float(last.mean()), "interval": half}

    def found(self, figures: Figures) -> str:
        first, last = figures["first_tenth"], figures["last_tenth"]
        return f"first tenth {first:.3g}, last tenth {last:.3g}: {last - first:+.3g} ± {figures['interval']:.2g}"

    def met(self, figures: Figures) -> bool:
        return self.sign * (figures["last_tenth"] - figures["first_tenth"]) > figures["interval"]


@dataclass(frozen=True)
class HalfOfTeacher:
    """The mean of the last `count` episodes passes half of what the teacher reaches, both counted from the `worst` return."""

    count: int
    worst: float
    tag: str = RETURN

    @property
    def words(self) -> str:
        return f"last {self.count} episodes pass half of the teacher, counted from {self.worst:g}"

    def measure(self, read: Read, _steps: int) -> Figures:
        return {"last": last_mean(read, self.count), "teacher": read(TEACHER)[1][-1]}

    def found(self, figures: Figures) -> str:
        return f"{figures['last']:.2f}, the teacher {figures['teacher']:.2f}"

    def met(self, figures: Figures) -> bool:
        return figures["last"] - self.worst > (figures["teacher"] - self.worst) / 2


@dataclass(frozen=True)
class Case:
    algo: str
    game: str
    steps: int
    target: LastEpisodes | Tenths | HalfOfTeacher
    """What is asked for; its tag is drawn."""
    flags: tuple[str, ...] = ()
    smooth: int = 20
    """The values that the drawn curve is a mean of."""
    teacher: str = ""
    """The case, by its file name, whose finished run with the same seed this one learns from."""

    @property
    def name(self) -> str:
        return f"{self.algo}:{self.game}"

    @property
    def file_name(self) -> str:
        return f"{self.algo}-{self.game}"

    def command(self, seed: int, work: Path = WORK) -> list[str]:
        flags = ["--env-id", self.game, "--total-timesteps", str(self.steps), "--seed", str(seed), "--no-cuda"]
        taught = ["--teacher-model-path", str(work / f"{self.teacher}-{seed}")] if self.teacher else []
        return ["-m", f"cleanrl_worker.algorithms.{self.algo}", *flags, *self.flags, *taught]


FEW_LEVELS = ("--num-levels", "10", "--num-envs", "16", "--num-steps", "128")

CASES = (
    Case("ppo_atari", "PongNoFrameskip-v4", 1_000_000, LastEpisodes(20, -17)),
    Case("pqn_atari_envpool", "Pong-v5", 1_000_000, LastEpisodes(20, -17)),
    Case("ppo_procgen", "coinrun", 300_000, Tenths(1), FEW_LEVELS, smooth=100),
    Case("ppg_procgen", "coinrun", 300_000, Tenths(1), (*FEW_LEVELS, "--n-iteration", "4"), smooth=100),
    Case(
        "ppo_rnd_envpool",
        "MontezumaRevenge-v5",
        150_000,
        Tenths(-1, "charts/curiosity_reward"),
        ("--num-envs", "16", "--num-steps", "128", "--num-iterations-obs-norm-init", "2"),
        smooth=1,
    ),
    Case(
        "dqn_atari",
        "PongNoFrameskip-v4",
        500_000,
        LastEpisodes(20, -17),
        ("--buffer-size", "100000", "--learning-starts", "20000", "--save-model"),
    ),
    Case(
        "qdagger_dqn_atari_impalacnn",
        "PongNoFrameskip-v4",
        50_000,
        HalfOfTeacher(20, worst=-21),
        ("--buffer-size", "50000", "--learning-starts", "2000", "--teacher-steps", "50000", "--offline-steps", "4000"),
        teacher="dqn_atari-PongNoFrameskip-v4",
    ),
)


def play(case: Case, seed: int, work: Path, records: Records, threads: int) -> str:
    """Train, or go on, and keep the record."""
    folder = work / f"{case.file_name}-{seed}"
    train(case.command(seed, work), folder, CLEANRL_CHECKPOINT_EVERY_SECONDS="300", OMP_NUM_THREADS=str(threads))
    read = cache(lambda tag: read_curve(folder, tag))  # a long run's event file takes a while to read
    steps, values = read(case.target.tag)
    figures = case.target.measure(read, case.steps)
    records.save(
        case.file_name,
        seed,
        {"steps": case.steps, "figures": figures},
        (steps, list(trailing_mean(values, case.smooth))),
    )
    return f"{case.name} seed {seed}: {case.target.found(figures)}"


def absent_teachers(jobs: list[tuple[Case, int]], work: Path) -> list[tuple[Case, int]]:
    """Who has to be trained again: a teacher's record says how good it was, but its students need the network itself."""
    by_name = {case.file_name: case for case in CASES}
    wanted = [(by_name[case.teacher], seed) for case, seed in jobs if case.teacher]
    return [
        (teacher, seed)
        for teacher, seed in wanted
        if (teacher, seed) not in jobs and not any((work / f"{teacher.file_name}-{seed}").rglob("*.cleanrl_model"))
    ]


def draw(case: Case, results: list[Record], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    for result in results:
        verdict = "met" if case.target.met(result["figures"]) else "missed"
        axes.plot(
            result["curve"]["steps"], result["curve"]["values"], linewidth=1, label=f"seed {result['seed']}: {verdict}"
        )
    what = case.target.tag + (f", mean of {case.smooth}" if case.smooth > 1 else "")
    axes.set(title=f"{case.algo} on {case.game}", xlabel="environment steps", ylabel=what)
    axes.legend(title=case.target.words)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def table(records: Records) -> tuple[list[str], bool]:
    """A row for each finished seed and each case without one, and whether every target was met."""
    rows, good = [], True
    for case in CASES:
        begins = f"| {case.algo} | {case.game} | {case.steps:,} | {case.target.words} |"
        results = records.of(case.file_name)
        if not results:
            rows.append(f"{begins} - | not run yet | - | - | `python {' '.join(case.command(1))}` |")
            good = False
        for result in results:
            met = case.target.met(result["figures"])
            good &= met
            rows.append(
                f"{begins} {result['seed']} | {case.target.found(result['figures'])} | {'yes' if met else 'NO'} | "
                f"[curve](learning-{case.file_name}.png) | `python {' '.join(case.command(result['seed']))}` |"
            )
    return rows, good


def report(records: Records, out: Path) -> bool:
    """Write table and curves of all that is finished, and what is not. Returns whether every target was met."""
    out.mkdir(parents=True, exist_ok=True)
    rows, good = table(records)
    head = [
        "# Learning on images",
        "",
        (
            "Sizes that two cores allow. `python tests/benchmarks/learning.py` trains what has no record in "
            "`records/learning` and writes this page and the curves from there. QDagger's teacher is a run of the dqn_atari "
            "command beside it, trained again where only its record was left: its row says how good that one was."
        ),
        "",
        *origins(record for case in CASES for record in records.of(case.file_name)),
        "",
        "| algorithm | game | steps | target | seed | found | met | curve | command |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    (out / "learning.md").write_text("\n".join([*head, *rows]) + "\n")
    for case in CASES:
        if results := records.of(case.file_name):
            draw(case, results, out / f"learning-{case.file_name}.png")
    return good


def main() -> int:
    parser = options(__doc__, str(WORK))
    parser.set_defaults(seeds=1)
    parser.add_argument("--only", nargs="*", help="cases, as algorithm:game")
    parser.add_argument("--threads", type=int, default=1, help="cores of each run")
    args = parser.parse_args()
    cases = [case for case in CASES if not args.only or case.name in args.only]
    if not cases:
        parser.error(f"--only must name some of {', '.join(case.name for case in CASES)}")
    work, records = args.work.resolve(), Records("learning", args.records)
    every = [(case, seed) for seed in range(1, args.seeds + 1) for case in cases]
    missing = [(case, seed) for case, seed in every if not records.has(case.file_name, seed)]
    missing += absent_teachers(missing, work)
    for taught in (False, True):  # whoever has a teacher waits for it
        jobs = [job for job in missing if bool(job[0].teacher) == taught]
        work_through(
            jobs, lambda job: play(*job, work, records, args.threads), lambda: report(records, args.out), args.jobs
        )
    good = report(records, args.out)
    print("\n".join(table(records)[0]))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
