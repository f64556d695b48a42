"""In the style of a script that first watches a teacher and then trains, with new environments under the same name."""

import gymnasium as gym


class Skip(gym.Wrapper):
    def step(self, action):
        super().step(action)
        return super().step(action)


def play(steps):
    for _ in range(steps):
        envs.step(envs.action_space.sample())


first = gym.make("MountainCar-v0")
print("limit", gym.make(first.spec)._max_episode_steps)
envs = gym.vector.SyncVectorEnv([lambda: Skip(gym.make("MountainCar-v0"))])
envs.reset(seed=1)
play(30)
envs = gym.vector.SyncVectorEnv([lambda: Skip(gym.make("MountainCar-v0"))])
envs.reset(seed=1)
play(40)
envs.close()
