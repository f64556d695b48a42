"""In the style of a continuous-action script for gymnasium 0.29: its chain of wrappers, old signatures."""

import gymnasium as gym
import numpy as np


def thunk():
    env = gym.make("Pendulum-v1")
    env = gym.wrappers.FlattenObservation(env)
    env = gym.wrappers.RecordEpisodeStatistics(env)
    env = gym.wrappers.ClipAction(env)
    env = gym.wrappers.NormalizeObservation(env)
    env = gym.wrappers.TransformObservation(env, lambda observation: np.clip(observation, -10, 10))
    env = gym.wrappers.NormalizeReward(env, gamma=0.99)
    return gym.wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))


envs = gym.vector.SyncVectorEnv([thunk])
envs.reset(seed=1)
for _ in range(400):
    _, _, _, _, infos = envs.step(envs.action_space.sample())
    for info in infos.get("final_info", []):
        if info is not None:
            print("return", float(info["episode"]["r"]))
