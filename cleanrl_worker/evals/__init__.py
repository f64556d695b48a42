"""Evaluation of saved models: one function for every algorithm."""

from cleanrl_worker.evals.evaluate import EvalResult, evaluate
from cleanrl_worker.evals.policies import Policy, load_policy

__all__ = ["EvalResult", "Policy", "evaluate", "load_policy"]
