"""In the style of an on-policy script for gymnasium 0.29: several environments, returns out of final_info."""

import sys

import gymnasium as gym
import numpy as np

env_id, num_envs, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def make_env(index):
    def thunk():
        env = gym.make(env_id)
        env = gym.wrappers.RecordEpisodeStatistics(env, deque_size=50)
        env.action_space.seed(index)
        return env

    return thunk


envs = gym.vector.SyncVectorEnv([make_env(index) for index in range(num_envs)])
assert isinstance(envs.single_action_space, gym.spaces.Discrete)
observations, _ = envs.reset(seed=1)
lengths = np.zeros(num_envs, dtype=int)
for _ in range(steps):
    actions = np.array([envs.single_action_space.sample() for _ in range(num_envs)])
    observations, rewards, terminations, truncations, infos = envs.step(actions)
    lengths += 1
    if "final_info" in infos:
        for index, info in enumerate(infos["final_info"]):
            if info and "episode" in info:
                assert info["episode"]["l"] == lengths[index], "a reset took a step of its own"
                lengths[index] = 0
                print("return", float(info["episode"]["r"]))
envs.close()
