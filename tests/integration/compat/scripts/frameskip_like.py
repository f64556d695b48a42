"""In the style of an Atari script: frames are skipped inside a vector environment, and an evaluation follows."""

import sys

import gymnasium as gym


class Skip(gym.Wrapper):
    def step(self, action):
        for _ in range(4):
            result = self.env.step(action)
            if result[2] or result[3]:
                break
        return result


def steps(vector, count):
    envs = vector([lambda: Skip(gym.make("CartPole-v1")) for _ in range(2)])
    envs.reset(seed=1)
    for _ in range(count):
        envs.step(envs.action_space.sample())
    return envs


if __name__ == "__main__":
    vector = gym.vector.AsyncVectorEnv if sys.argv[1] == "async" else gym.vector.SyncVectorEnv
    training = steps(vector, 50)
    evaluation = steps(vector, 30)
    evaluation.close()
    training.close()
