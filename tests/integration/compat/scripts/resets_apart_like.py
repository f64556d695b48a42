"""In the style of an off-policy script for gymnasium 1.x: the step that resets is known, and left out of the replay."""

import gymnasium as gym
import numpy as np

envs = gym.vector.SyncVectorEnv(
    [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1", max_episode_steps=20))]
)
observations, _ = envs.reset(seed=1)
autoreset, kept = np.zeros(envs.num_envs, dtype=bool), 0
for _ in range(63):
    actions = np.array([envs.single_action_space.sample() for _ in range(envs.num_envs)])
    next_observations, rewards, terminations, truncations, infos = envs.step(actions)
    if not autoreset[0]:
        kept += 1
        # The angle moves little in one step; a fresh episode's would not be its successor.
        angle, successor = (np.arctan2(row[1], row[0]) for row in (observations[0], next_observations[0]))
        assert abs((successor - angle + np.pi) % (2 * np.pi) - np.pi) < 0.5
    observations, autoreset = next_observations, np.logical_or(terminations, truncations)
    if autoreset[0]:
        print("return", kept, float(infos["episode"]["r"][0]))
