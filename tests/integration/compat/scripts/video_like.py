"""A script that records its own video, as one does with --capture-video, and what W&B would ask its recorder."""

import gymnasium as gym

env = gym.make("CartPole-v1", render_mode="rgb_array")
env = recorder = gym.wrappers.RecordVideo(env, "mine")
env.reset(seed=1)
for _ in range(30):
    _, _, terminated, _, _ = env.step(env.action_space.sample())
    if terminated:
        env.reset()
env.close()
print(recorder.enabled, recorder.path)
