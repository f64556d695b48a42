"""Curriculum learning on Syllabus-RL: the algorithm stays as it is, the environments change under it.

Used of Syllabus: `ReinitTaskWrapper` (one environment that becomes another), `SequentialCurriculum` over `Constant` tasks in a
`DiscreteTaskSpace`, and its condition language. Not used: its synchronisation wrappers, which carry tasks between processes
through queues and threads, so that neither a seed nor a checkpoint could fix which episode a switch falls on; all environments
of a run live in one process here, and ask the curriculum directly. `StageCurriculum` says where its counting differs.

`Stages` is what `training.envs.Envs` talks to: who plays what, when a stage ends, and all of it in checkpoints.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

with np.errstate():  # Syllabus makes NumPy raise on every underflow and on log(0), for the whole process; not here
    from syllabus.core import GymnasiumEvaluationWrapper, ReinitTaskWrapper
    from syllabus.curricula import Constant, SequentialCurriculum
    from syllabus.task_space import DiscreteTaskSpace

from cleanrl_worker.schedule import BABYAI_DOORKEY_CURRICULUM, BABYAI_GOTO_CURRICULUM, Stage
from cleanrl_worker.training.errors import BadConfig

__all__ = [
    "BABYAI_DOORKEY_CURRICULUM",
    "BABYAI_GOTO_CURRICULUM",
    "BabyAITaskWrapper",
    "StageCurriculum",
    "Stages",
]

# Importing Syllabus takes a block of shared memory for this wrapper, which nobody uses here and nobody would give back.
GymnasiumEvaluationWrapper.env_count.shm.close()
GymnasiumEvaluationWrapper.env_count.shm.unlink()

WINDOW = 100
"""`episode_return` is the mean of this many episodes of the stage, the last ones."""
FEWEST = 20
"""Before so many episodes of a stage it has no mean: one lucky episode ends nothing."""


class BabyAITaskWrapper(ReinitTaskWrapper):  # type: ignore[misc] # syllabus has no types
    """One environment of a curriculum. A task is a stage's number or its environment's id.

    `begin` chooses the task of the next episode and `reset` starts it; within an episode nothing changes. Each stage's
    environment is made when it is first needed, seeded by the run's seed and the stage's number.
    """

    def __init__(self, make: Callable[[str], gym.Env[Any, Any]], env_ids: list[str]) -> None:
        self.env_ids = list(env_ids)
        first = make(self.env_ids[0])
        super().__init__(first, lambda task: make(self.env_ids[task]), gym.spaces.Discrete(len(self.env_ids)))
        self.task_envs[0] = first
        self.task = 0
        self._spaces = (first.observation_space, first.action_space)
        self._seed = 0
        self._started: set[int] = set()

    @property
    def current_env_id(self) -> str:
        return self.env_ids[self.task]

    def change_task(self, new_task: int | str) -> None:
        """Become another environment. Only `begin` and `reset` call it: never within an episode."""
        task = self.env_ids.index(new_task) if isinstance(new_task, str) else int(new_task)
        if not 0 <= task < len(self.env_ids):
            raise ValueError(f"there is no stage {task}: the curriculum has {len(self.env_ids)}")
        super().change_task(task)
        if (self.env.observation_space, self.env.action_space) != self._spaces:
            raise BadConfig(
                f"{self.current_env_id} does not fit into this curriculum: it has the spaces {self.env.observation_space} "
                f"and {self.env.action_space}, and {self.env_ids[0]} has {self._spaces[0]} and {self._spaces[1]}. "
                "One network can only learn stages with the same spaces."
            )

    def begin(self, task: int | str, seed: int | None) -> int | None:
        """Settle the task of the next episode; returns the seed that `reset` is to be given."""
        if seed is not None:
            self._seed, self._started = seed, set()
        self.change_task(task)
        if self.task in self._started:
            return None
        self._started.add(self.task)
        if self.task == 0:
            return self._seed
        return int(np.random.SeedSequence([self._seed, self.task]).generate_state(1)[0])

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        new_task: int | str | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode, of `new_task` if that is given. (Syllabus's own would take the seed for a task.)"""
        if new_task is not None:
            given = self.begin(new_task, None)
            seed = given if seed is None else seed
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, {**info, "task": self.task, "task_completion": 0.0}

    def close(self) -> None:
        for env in self.task_envs.values():
            env.close()

    def state_dict(self) -> dict[str, Any]:
        return {"task": self.task, "seed": self._seed, "started": sorted(self._started)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.change_task(state["task"])
        self.env.reset(seed=0)  # makes the generators that the wrappers below are about to restore
        self._seed, self._started = state["seed"], set(state["started"])


class StageCurriculum(SequentialCurriculum):  # type: ignore[misc] # syllabus has no types
    """Syllabus's sequence of curricula, one constant task per stage, with exact counting.

    Syllabus credits an episode to the stage that is current when it ends, counts its steps only then, and takes the mean of
    however few returns there are. Here an episode counts for the stage it was played in, steps count when they are taken, and
    the mean needs `FEWEST` episodes and looks back at `WINDOW`.
    """

    def __init__(self, stages: list[Stage]) -> None:
        space = DiscreteTaskSpace(len(stages))
        tasks = [Constant(index, space) for index in range(len(stages))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a sequence of one stage, which is a plain run
            super().__init__(tasks, [stage.condition for stage in stages[:-1]], space)
        self.episode_returns: deque[float] = deque(maxlen=WINDOW)

    @property
    def stage(self) -> int:
        return int(self._curriculum_index)

    def sample(self, k: int = 1) -> list[int]:
        self.n_tasks += k
        self.total_tasks += k
        return [self.stage] * k

    def count_steps(self, steps: int) -> None:
        """Steps of environments that play the current stage."""
        self.n_steps += steps
        self.total_steps += steps

    def update_on_episode(
        self,
        episode_return: float,
        length: int,  # noqa: ARG002 - the signature is Syllabus's
        task: int,
        progress: float,  # noqa: ARG002
        env_id: int | None = None,  # noqa: ARG002
    ) -> None:
        self.total_episodes += 1
        if task != self.stage:
            return
        self.n_episodes += 1
        self.episode_returns.append(episode_return)
        self.check_stopping_conditions()

    def _get_episode_return(self) -> float:
        returns = self.episode_returns
        return sum(returns) / len(returns) if len(returns) >= FEWEST else float("-inf")

    _COUNTERS = (
        "n_steps",
        "total_steps",
        "n_episodes",
        "total_episodes",
        "n_tasks",
        "total_tasks",
        "_curriculum_index",
    )

    def state_dict(self) -> dict[str, Any]:
        counters = {name: int(getattr(self, name)) for name in self._COUNTERS}
        return {**counters, "episode_returns": [float(value) for value in self.episode_returns]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._COUNTERS:
            setattr(self, name, int(state[name]))
        self.episode_returns = deque(state["episode_returns"], maxlen=WINDOW)


class Stages:
    """A curriculum and the environments that follow it, each from its own next episode on."""

    def __init__(self, stages: list[Stage], make: Callable[[str], gym.Env[Any, Any]], num_envs: int) -> None:
        self.stages = stages
        self.curriculum = StageCurriculum(stages)
        env_ids = [stage.env_id for stage in stages]
        self.envs: list[Any] = [BabyAITaskWrapper(make, env_ids) for _ in range(num_envs)]
        for task in range(1, len(stages)):  # a stage that can't be made or does not fit is refused now, not after hours
            self.envs[0].change_task(task)
        self.envs[0].change_task(0)

    @property
    def stage(self) -> int:
        return self.curriculum.stage

    def name(self, stage: int) -> str:
        return self.stages[stage].env_id

    def begin(self, env: int, seed: int | None) -> int | None:
        """Environment `env` is about to start an episode; returns the seed for it."""
        given: int | None = self.envs[env].begin(self.curriculum.sample()[0], seed)
        return given

    def stepped(self) -> None:
        """All environments took a step."""
        stage = self.curriculum.stage
        self.curriculum.count_steps(sum(env.task == stage for env in self.envs))

    def ended(self, env: int, ret: float, length: int) -> int:
        """An episode is over. Returns the stage it was of."""
        task: int = self.envs[env].task
        self.curriculum.update_on_episode(ret, length, task, 1.0, env)
        return task

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": [stage.to_dict() for stage in self.stages], **self.curriculum.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["schedule"] != [stage.to_dict() for stage in self.stages]:
            raise ValueError("it was saved under another curriculum schedule")
        self.curriculum.load_state_dict(state)
