"""In the style of a buffer written before numpy 2.4: arrays over one environment put where a number goes."""

import json
import pickle

import numpy as np

actions, rewards, dones = np.zeros(5, dtype=np.int64), np.zeros(5, dtype=np.float32), np.ones(5, dtype=np.bool_)
actions[1] = np.array([3])
rewards[2] = 0.5 * np.array([3.0])
dones[0] = np.array([False])
rewards[3:] = np.array([1.0, 2.0])
rewards[:2] = np.array([7.0])
print(actions.tolist(), rewards.tolist(), dones.tolist())
try:
    actions[0] = np.array([1, 2])
except ValueError:
    print("two are too many")
rewards += 1.0
rewards[4] = np.array([0.0])
print(json.dumps({"sum": rewards.astype(float).sum(), "largest": float(rewards.max())}), {rewards.mean() > 1.0})
kept = pickle.loads(pickle.dumps(rewards))
print(type(kept).__name__, type(rewards * 2).__name__, type(rewards.mean()).__name__, kept.tolist())
