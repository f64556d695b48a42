"""In the style of a Procgen script for gym 0.23: one environment object for all, wrapped by classes for single ones."""

import gym
import numpy as np
from procgen import ProcgenEnv

envs = ProcgenEnv(num_envs=3, env_name="bossfight", num_levels=0, start_level=0, distribution_mode="easy")
envs = gym.wrappers.TransformObservation(envs, lambda obs: obs["rgb"])
envs.single_action_space = envs.action_space
envs.single_observation_space = envs.observation_space["rgb"]
envs.is_vector_env = True
envs = gym.wrappers.RecordEpisodeStatistics(envs)
envs = gym.wrappers.NormalizeReward(envs, gamma=0.999)
envs = gym.wrappers.TransformReward(envs, lambda reward: np.clip(reward, -10, 10))
assert isinstance(envs.single_action_space, gym.spaces.Discrete)
obs = envs.reset()
print("images", obs.shape, obs.dtype, envs.single_observation_space.shape, envs.single_action_space.n)
print("first", int(obs.astype(int).sum()))
lengths = np.zeros(3, dtype=int)
for _ in range(400):
    obs, reward, done, info = envs.step(np.full(3, 9))
    lengths += 1
    assert reward.shape == done.shape == (3,)
    for index, item in enumerate(info):
        if "episode" in item:
            assert done[index] and item["episode"]["l"] == lengths[index]
            print("return", item["episode"]["r"])
            lengths[index] = 0
envs.close()
