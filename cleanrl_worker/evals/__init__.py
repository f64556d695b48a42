"""Evaluation of saved models: one way for every algorithm."""

from cleanrl_worker.evals.evaluate import EvalResult, Evaluation, evaluate, playing_envs
from cleanrl_worker.evals.policies import Policy, load_policy

__all__ = ["EvalResult", "Evaluation", "Policy", "evaluate", "load_policy", "playing_envs"]
