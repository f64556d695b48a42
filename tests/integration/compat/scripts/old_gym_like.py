"""In the style of an off-policy script for gym 0.23: a seed method, four values, infos as a list."""

import gym
import numpy as np


def make_env(seed):
    def thunk():
        env = gym.make("CartPole-v1", max_episode_steps=12)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env.seed(seed)
        env.action_space.seed(seed)
        env.observation_space.seed(seed)
        return env

    return thunk


envs = gym.vector.SyncVectorEnv([make_env(7), make_env(7)])
assert isinstance(envs.single_action_space, gym.spaces.Discrete)
obs = envs.reset()
print("seeded alike", bool((obs[0] == obs[1]).all()))
for step in range(60):
    actions = np.array([step // 2 % 2, 1])  # balanced, and over to one side
    next_obs, rewards, dones, infos = envs.step(actions)
    for index, info in enumerate(infos):
        if "episode" in info:
            assert dones[index]
            last = info["terminal_observation"]
            cut = info.get("TimeLimit.truncated", False)
            fallen = abs(last[2]) > 0.2
            print("return", index, "cut" if cut else "over", "fallen" if fallen else "upright", info["episode"]["r"])
            assert abs(next_obs[index]).max() < 0.06, "the next episode's first observation"
envs.close()
evaluated = gym.wrappers.RecordVideo(gym.make("CartPole-v1", max_episode_steps=3), "videos/evaluated")
evaluated.close()
