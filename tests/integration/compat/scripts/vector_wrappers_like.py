"""In the style of a script for gymnasium 1.x: wrappers around the vector, and in the end an explicit way of resetting."""

import gymnasium as gym
import numpy as np

envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
for wrapper in ("RecordEpisodeStatistics", "NormalizeObservation", "NormalizeReward"):
    envs = getattr(gym.wrappers.vector, wrapper)(envs)
envs.reset(seed=1)
for _ in range(60):
    *_, infos = envs.step(np.array([1, 0]))
    if "episode" in infos:
        print("return", *infos["episode"]["r"][infos["_episode"]])
envs.close()

heavier = gym.vector.SyncVectorEnv([lambda: gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 9)] * 2)
heavier.set_attr("masscart", [3.0, 4.0])
heavier.set_attr("new", 1)
print("mass", [env.unwrapped.masscart for env in heavier.envs], heavier.get_attr("masscart"), heavier.get_attr("new"))

explicit = gym.vector.SyncVectorEnv(
    [lambda: gym.make("CartPole-v1", max_episode_steps=5)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
)
explicit = gym.wrappers.vector.DictInfoToList(explicit)
explicit.reset(seed=1)
ended = [explicit.step(np.array([step % 2]))[-1][0] for step in range(5)][-1]
print("ended", sorted(ended))
