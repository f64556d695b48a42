"""In the style of a script for several players of gym 0.23: SuperSuit's vector, with gym's wrapper around it."""

import importlib

import gym
import numpy as np
import supersuit

env = importlib.import_module("pettingzoo.atari.boxing_v2").parallel_env(max_cycles=40)
env = supersuit.frame_skip_v0(env, 4)
env = supersuit.resize_v1(env, x_size=84, y_size=84)
env = supersuit.pettingzoo_env_to_vec_env_v1(env)
envs = supersuit.concat_vec_envs_v1(env, 2, num_cpus=0, base_class="gym")
envs.single_observation_space = envs.observation_space
envs.single_action_space = envs.action_space
envs.is_vector_env = True
envs = gym.wrappers.RecordEpisodeStatistics(envs)
assert isinstance(envs.single_action_space, gym.spaces.Discrete)
obs = envs.reset()
print("players", obs.shape[0])
for _ in range(25):
    obs, reward, done, info = envs.step(np.ones(4, dtype=int))
    assert done.dtype == bool
    for item in info:
        if "episode" in item:
            print("return", item["episode"]["l"], item["episode"]["r"])
envs.close()
