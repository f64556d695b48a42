"""QDagger (Agarwal et al. 2022) on Atari games: a student with another network starts from what a teacher knows.

1. The teacher plays `teacher_steps` steps into a replay memory, with fewer and fewer random actions, or recorded games fill it.
2. Offline, the student learns from that memory for `offline_steps` gradient steps: Q-learning plus the cross entropy between
   the teacher's action probabilities, softmax(Q_teacher / temperature), and its own.
3. Online, the student goes on as DQN. The weight of the distillation falls as its return approaches the teacher's.

The teacher is a value network from a local file or run (`--teacher-model-path`) or from the Hugging Face hub. With recorded
games alone (`--expert-trajectories`) there are no probabilities but actions: these are what is distilled, and online half of
each batch comes from the recorded games. Only the online steps count as steps of the run.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from cleanrl_worker.agents.atari_values import ImpalaQNetwork, follow
from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envs import Envs, require_discrete_actions
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, seed_torch
from cleanrl_worker.training.replay import Batch
from cleanrl_worker.training.replay_frames import FrameReplay, make_frame_replay
from cleanrl_worker.training.replay_torch import on_device
from cleanrl_worker.training.run import Run, launch
from cleanrl_worker.training.teacher import Floats, Teacher, find_teacher, vague_advice
from cleanrl_worker.training.trajectories import fill

OFFLINE_MODEL_EVERY = 100_000
"""Gradient steps between the offline student's model files and evaluations."""
RECENT = 10
"""The student's return is the mean over so many episodes."""


@dataclass
class Flags:
    """What both versions of QDagger read."""

    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10000000
    """total timesteps of the student's online phase"""
    learning_rate: float = 1e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of environments; must be 1"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 1.0
    """how far the target network moves towards the online one at each update of it; 1 is a copy"""
    target_network_frequency: int = 1000
    """the timesteps (offline: gradient steps) between updates of the target network"""
    batch_size: int = 32
    """the transitions sampled from the replay memory for one gradient step"""
    start_e: float = 1
    """the exploration rate epsilon at the start"""
    end_e: float = 0.01
    """the exploration rate epsilon at the end of its schedule"""
    exploration_fraction: float = 0.1
    """the fraction of `total_timesteps` over which epsilon goes from `start_e` to `end_e`"""
    learning_starts: int = 80000
    """the timestep after which online learning starts"""
    train_frequency: int = 4
    """the timesteps between gradient steps"""
    teacher_policy_hf_repo: str | None = None
    """the teacher's repository on the Hugging Face hub; by default cleanrl/{env_id}-{teacher_model_exp_name}-seed1"""
    teacher_model_exp_name: str = "dqn_atari"
    """the experiment whose model the teacher's repository holds"""
    teacher_model_path: str | None = None
    """a local teacher, instead of the hub: a model file, a checkpoint, a run's folder or its manifest analytics.json"""
    expert_trajectories: str | None = None
    """recorded games, a folder of .npz files or one: instead of the teacher's play, and without a teacher instead of it"""
    teacher_eval_episodes: int = 10
    """the games over which the teacher's return is measured"""
    teacher_steps: int = 500000
    """the steps that the teacher plays"""
    offline_steps: int = 500000
    """the gradient steps that the student takes before it plays"""
    temperature: float = 1.0
    """what values are divided by before they become probabilities"""


@dataclass
class Args(Flags, SaveArgs):
    """QDagger with an IMPALA network as the student."""

    exp_name: str = "qdagger_dqn_atari_impalacnn"
    """the name of this experiment"""


class Lesson(NamedTuple):
    """A batch, and the teacher's action probabilities for the rows that `advised` marks."""

    batch: Batch
    advice: Floats
    advised: Floats


class Figures(NamedTuple):
    """What a gradient step came to."""

    loss: float
    q_loss: float
    distill_loss: float
    q_value: float


class Student(Protocol):
    """A Q-network that learns, in whatever library."""

    def act(self, obs: npt.NDArray[np.uint8]) -> npt.NDArray[Any]: ...

    def learn(self, lesson: Lesson, weight: float) -> Figures:
        """One gradient step; `weight` is that of the distillation."""
        ...

    def follow(self, tau: float) -> None:
        """Move the target network towards the online one."""
        ...

    def model(self) -> Any:
        """What a model file holds."""
        ...


class TorchStudent:
    """The residual network of IMPALA, in torch."""

    def __init__(self, args: Args, num_actions: int) -> None:
        self.device, self.args = device_for(args), args
        self.network = ImpalaQNetwork(num_actions).to(self.device)
        self.target = deepcopy(self.network)
        self.optimizer = FlatAdam(self.network, eps=1e-8)

    def act(self, obs: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        with torch.no_grad():
            values: torch.Tensor = self.network(torch.as_tensor(obs, device=self.device))
        return values.argmax(dim=1).cpu().numpy()

    def learn(self, lesson: Lesson, weight: float) -> Figures:
        args, batch = self.args, on_device(lesson.batch, self.device)
        advice, advised = (torch.from_numpy(x).to(self.device) for x in (lesson.advice, lesson.advised))
        with torch.no_grad():
            target = batch.reward + args.gamma * (1.0 - batch.terminated) * self.target(batch.next_obs).amax(dim=1)
        q = self.network(batch.obs)
        value = q.gather(1, batch.action[:, None])[:, 0]
        q_loss = functional.mse_loss(value, target)
        cross_entropy = -(advice * functional.log_softmax(q / args.temperature, dim=1)).sum(dim=1)
        distill_loss = (cross_entropy * advised).sum() / advised.sum()
        loss = q_loss + weight * distill_loss
        self.optimizer.descend(loss, args.learning_rate)
        return Figures(loss.item(), q_loss.item(), distill_loss.item(), value.detach().mean().item())

    def follow(self, tau: float) -> None:
        follow(self.target, self.network, tau)

    def model(self) -> Any:
        return self.network.state_dict()


def distill_weight(returns: list[float], teacher_return: float) -> float:
    """1 while nothing is known of the student; then how far it stays behind the teacher, from 1 to 0."""
    if len(returns) < RECENT:
        return 1.0
    student = sum(returns) / len(returns)
    if teacher_return <= 0:  # a fraction of nothing, or of less, says nothing
        return 1.0 if student < teacher_return else 0.0
    return min(max(1.0 - student / teacher_return, 0.0), 1.0)


def checked_envs(args: Flags, run: Run) -> tuple[Envs, int]:
    """The environment and its number of actions. Refuses flags that can't be followed."""
    algo = run.algo
    if args.num_envs != 1:
        raise BadConfig(f"{algo} learns from one environment: set --num-envs 1, not {args.num_envs}.")
    for name in ("teacher_eval_episodes", "teacher_steps", "offline_steps"):
        if getattr(args, name) < 1:
            raise BadConfig(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}.")
    envs = run.make_envs(1, frames=4)
    return envs, require_discrete_actions(envs, algo, instead="td3_continuous_action")


def learn(args: Flags, run: Run, envs: Envs, num_actions: int, student: Student) -> None:
    """All three phases. `student` is among the run's kept things."""
    teacher = find_teacher(args, envs, num_actions)
    replay = make_frame_replay(run, envs)
    recorded = sum(len(game) for game in teacher.games)
    lessons = FrameReplay(min(recorded or args.teacher_steps, args.buffer_size), envs.obs_shape, run.rng.spawn(1)[0])
    done: dict[str, Any] = {"teacher_steps": 0, "teacher_return": None, "offline_steps": 0, "returns": []}
    run.keep(lessons=lessons, done=done)
    run.start()
    if not run.restored:
        student.follow(1.0)

    take_lessons(args, run, envs, teacher, lessons, done)
    learn_offline(args, run, teacher, lessons, student, done)
    learn_online(args, run, envs, teacher, lessons, replay, student, done)
    run.finish(model=student.model)


def take_lessons(
    args: Flags, run: Run, envs: Envs, teacher: Teacher, lessons: FrameReplay, done: dict[str, Any]
) -> None:
    """Phase 1: measure the teacher, and fill the memory with its play or with recorded games."""
    if done["teacher_return"] is None:
        if teacher.path is not None:
            run.note(f"Measuring the teacher {teacher.path} over {args.teacher_eval_episodes} games ...")
            measured = average_return(run, teacher.path, args.teacher_eval_episodes, seed=run.args.seed)
        else:
            measured = float(np.mean([game.score for game in teacher.games]))
        done["teacher_return"] = measured
        run.scalars({"charts/teacher/avg_episodic_return": measured})
        run.note(f"The teacher's return is {measured:.2f}.")
    if done["teacher_steps"] >= args.teacher_steps:
        return
    if teacher.games:
        fill(lessons, teacher.games, teacher.num_actions, envs.obs_shape)
        done["teacher_steps"] = args.teacher_steps
        run.note(f"{len(lessons)} recorded steps are in the memory.")
        return
    run.note(f"The teacher plays {args.teacher_steps} steps ...")
    rng = run.rng
    while done["teacher_steps"] < args.teacher_steps:
        epsilon = linear_schedule(args.start_e, args.end_e, args.teacher_steps, done["teacher_steps"])
        obs = envs.obs
        explore = rng.random() < epsilon
        actions = np.array([rng.integers(teacher.num_actions)]) if explore else teacher.act(obs)
        step = envs.step(actions)
        lessons.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0], step.truncated[0])
        done["teacher_steps"] += 1
        if done["teacher_steps"] == args.teacher_steps:
            envs.reset(run.args.seed)  # what the teacher began is not the student's game
        told(run, "The teacher has played", done["teacher_steps"], args.teacher_steps)
        run.attend()


def learn_offline(
    args: Flags, run: Run, teacher: Teacher, lessons: FrameReplay, student: Student, done: dict[str, Any]
) -> None:
    """Phase 2: learn from the teacher's games."""
    if done["offline_steps"] == 0:
        run.note(f"The student learns offline for {args.offline_steps} gradient steps ...")
    while done["offline_steps"] < args.offline_steps:
        batch = lessons.sample(args.batch_size)
        advice = teacher.advice(batch)
        if done["offline_steps"] == 0 and (remedy := vague_advice(advice, args.temperature)):
            run.note(remedy, level="warning")
        figures = student.learn(Lesson(batch, advice, np.ones(args.batch_size, np.float32)), 1.0)
        run.guard(loss=figures.loss)
        done["offline_steps"] += 1
        at = done["offline_steps"]
        if at % args.target_network_frequency == 0:
            student.follow(args.tau)
        if at % 100 == 0:
            run.scalars(
                {
                    "charts/offline/loss": figures.loss,
                    "charts/offline/q_loss": figures.q_loss,
                    "charts/offline/distill_loss": figures.distill_loss,
                },
                step=at,
            )
        if at % OFFLINE_MODEL_EVERY == 0 or at == args.offline_steps:
            path = run.write_model(student.model(), f"{run.args.exp_name}-offline-{at}.cleanrl_model")
            average = average_return(run, path, args.teacher_eval_episodes, seed=run.args.seed)
            run.scalars({"charts/offline/avg_episodic_return": average}, step=at)
        told(run, "The student has learned offline for", at, args.offline_steps)
        run.attend()


def learn_online(
    args: Flags,
    run: Run,
    envs: Envs,
    teacher: Teacher,
    lessons: FrameReplay,
    replay: FrameReplay,
    student: Student,
    done: dict[str, Any],
) -> None:
    """Phase 3: DQN, with a distillation that fades."""
    rng = run.rng
    while run.step < args.total_timesteps:
        epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, run.step)
        obs = envs.obs
        explore = rng.random() < epsilon
        actions = np.array([rng.integers(teacher.num_actions)]) if explore else student.act(obs)
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0], step.truncated[0])
        done["returns"] = [*done["returns"], *(episode.ret for episode in step.episodes)][-RECENT:]

        if run.step > args.learning_starts:
            if run.step % args.train_frequency == 0:
                weight = distill_weight(done["returns"], done["teacher_return"])
                figures = student.learn(online_lesson(teacher, replay, lessons, args.batch_size), weight)
                run.guard(loss=figures.loss)
                if run.step % 100 == 0:
                    run.scalars(
                        {
                            "losses/loss": figures.loss,
                            "losses/td_loss": figures.q_loss,
                            "losses/distill_loss": figures.distill_loss,
                            "losses/q_values": figures.q_value,
                            "charts/distill_coeff": weight,
                            "charts/epsilon": epsilon,
                            "charts/SPS": run.sps,
                        }
                    )
            if run.step % args.target_network_frequency == 0:
                student.follow(args.tau)
        run.tick(step)


def online_lesson(teacher: Teacher, replay: FrameReplay, lessons: FrameReplay, size: int) -> Lesson:
    """The student's own steps with the teacher's advice; without a teacher half of them, and half recorded ones."""
    if teacher.policy is not None:
        batch = replay.sample(size)
        return Lesson(batch, teacher.advice(batch), np.ones(size, np.float32))
    own, recorded = replay.sample(size - size // 2), lessons.sample(max(size // 2, 1))
    both = Batch(**{name: np.concatenate((value, getattr(recorded, name))) for name, value in vars(own).items()})
    advised = np.concatenate((np.zeros(len(own.action), np.float32), np.ones(len(recorded.action), np.float32)))
    return Lesson(both, teacher.advice(both), advised)


def told(run: Run, what: str, step: int, total: int) -> None:
    """Say how far a phase is that takes no steps of the run, at every twentieth of it."""
    if step * 20 // total != (step - 1) * 20 // total:
        run.note(f"{what} {step} of {total} steps.")


def average_return(run: Run, path: Path, episodes: int, seed: int) -> float:
    """The mean return of a saved model over so many games. The run obeys and reports meanwhile."""
    from cleanrl_worker.evals import Evaluation

    evaluation = Evaluation(path, run.args.env_id, most_episodes=episodes, frames=4)
    try:
        return evaluation.play(episodes, seed + 10_000, on_step=lambda _: run.attend()).avg_return
    finally:
        evaluation.close()


def train(args: Args, run: Run) -> None:
    envs, num_actions = checked_envs(args, run)
    seed_torch(args)
    student = TorchStudent(args, num_actions)
    run.keep(agent=student.network, target_network=student.target, optimizer=student.optimizer)
    learn(args, run, envs, num_actions, student)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())
