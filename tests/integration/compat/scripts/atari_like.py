"""In the style of an Atari script for gymnasium 0.29: unregistered id, old wrapper names, a frame stack."""

import gymnasium as gym

env = gym.make("BreakoutNoFrameskip-v4")
env = gym.wrappers.RecordEpisodeStatistics(env)
env = gym.wrappers.ResizeObservation(env, (84, 84))
env = gym.wrappers.GrayScaleObservation(env)
env = gym.wrappers.FrameStack(env, 4)
envs = gym.vector.SyncVectorEnv([lambda: env])
observations, _ = envs.reset(seed=1)
for _ in range(5):
    observations, *_ = envs.step(envs.action_space.sample())
print("shape", observations.shape, observations.dtype)
print("square", gym.wrappers.ResizeObservation(gym.make("BreakoutNoFrameskip-v4"), 84).observation_space.shape)
