"""In the style of an envpool script for gym 0.23: a wrapper of its own around the pool, infos as one dict."""

import envpool
import gym
import numpy as np


class Totals(gym.Wrapper):
    def reset(self, **kwargs):
        observations = super().reset(**kwargs)
        self.totals = np.zeros(self.num_envs)
        return observations

    def step(self, action):
        observations, rewards, dones, infos = super().step(action)
        self.totals += infos["reward"]
        infos["r"] = self.totals.copy()
        self.totals *= 1 - infos["terminated"]
        return observations, rewards, dones, infos


envs = envpool.make("Breakout-v5", env_type="gym", num_envs=3, episodic_life=True, reward_clip=True, seed=1)
envs.num_envs = 3
envs.single_action_space = envs.action_space
envs.single_observation_space = envs.observation_space
envs = Totals(envs)
assert isinstance(envs.action_space, gym.spaces.Discrete)
obs = envs.reset()
print("images", obs.shape)
for step in range(400):
    obs, reward, done, info = envs.step(np.full(3, 1 + step % 3))
    for index in np.flatnonzero(done):
        if info["lives"][index] == 0:
            print("return", info["r"][index])
envs.close()
