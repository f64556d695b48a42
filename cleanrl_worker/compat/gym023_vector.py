"""Environments that speak as gym 0.23 did; see `gym023`."""

from __future__ import annotations

from typing import Any

import gymnasium

from cleanrl_worker.compat.gym023 import old_step


class OldVectorEnv(gymnasium.Env[Any, Any]):
    """Several environments in one, in the old interface. A `gymnasium.Env` so that the script's own wrappers take it.

    `observation_space` and `action_space` are those of one environment, as the libraries that made such environments had it.
    """

    speaks_gym023 = True
    is_vector_env = True

    def __init__(self, num_envs: int, observation_space: Any, action_space: Any) -> None:
        from cleanrl_worker.fastlane.wrapper import announce_vector

        self.num_envs = num_envs
        self.observation_space = self.single_observation_space = observation_space
        self.action_space = self.single_action_space = action_space
        announce_vector(self)

    def reset(self, **_: Any) -> Any:
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        raise NotImplementedError

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Without effect: these environments are given their seeds when they are made."""
        return [seed]

    def count(self, rewards: Any) -> None:
        """Call after each step, for the run's progress."""
        from cleanrl_worker.fastlane.wrapper import count_vector_step

        count_vector_step(self, rewards)


class AdaptedVectorEnv(OldVectorEnv):
    """A vector environment with gymnasium's five values, whose own attributes stay within reach."""

    def __init__(self, vector: Any) -> None:
        super().__init__(vector.num_envs, vector.observation_space, vector.action_space)
        self.vector = vector

    def reset(self, **kwargs: Any) -> Any:
        return self.vector.reset(**kwargs)[0]

    def step(self, action: Any) -> Any:
        result = old_step(self.vector.step(action))
        self.count(result[1])
        return result

    def render(self, *_: Any, **__: Any) -> Any:
        return self.vector.render()

    def close(self) -> None:
        self.vector.close()

    def __getattr__(self, name: str) -> Any:
        if name == "vector":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.vector, name)


class SeedMethodWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """`seed(n)` as a method, for the next `reset`."""

    made_by_worker = True

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._next_seed: int | None = None

    def seed(self, seed: int | None = None) -> list[int | None]:
        self._next_seed = seed
        return [seed]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is None:
            seed, self._next_seed = self._next_seed, None
        return self.env.reset(seed=seed, options=options)
