"""Evaluation of saved models: one way for every algorithm."""

from cleanrl_worker.evals.evaluate import EvalResult, Evaluation, evaluate, playing_envs
from cleanrl_worker.evals.policies import Policy, fit, load_policy, read_saved

__all__ = ["EvalResult", "Evaluation", "Policy", "evaluate", "fit", "load_policy", "playing_envs", "read_saved"]
