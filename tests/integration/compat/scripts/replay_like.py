"""In the style of an off-policy script for gymnasium 0.29: the real next observation out of final_observation."""

import gymnasium as gym
import numpy as np

envs = gym.vector.SyncVectorEnv(
    [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1", max_episode_steps=20))]
)
observations, _ = envs.reset(seed=1)
for step in range(1, 101):
    actions = np.array([envs.single_action_space.sample() for _ in range(envs.num_envs)])
    next_observations, rewards, terminations, truncations, infos = envs.step(actions)
    real = next_observations.copy()
    for index, truncated in enumerate(truncations):
        if truncated:
            real[index] = infos["final_observation"][index]
            # The angle moves little in one step; a fresh episode's would not be its successor.
            angle, successor = (np.arctan2(row[1], row[0]) for row in (observations[index], real[index]))
            assert abs((successor - angle + np.pi) % (2 * np.pi) - np.pi) < 0.5
            assert not np.array_equal(real[index], next_observations[index])
    if "final_info" in infos:
        for info in infos["final_info"]:
            if info is not None:
                print("return", step, float(info["episode"]["r"]))
    observations = next_observations
