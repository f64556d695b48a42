"""The flags that every algorithm has. An algorithm's `Args` extends these, so that its own flags stand in its own file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RunArgs:
    """Who the run is, and what is written about it."""

    exp_name: str = ""
    """the name of this experiment"""
    seed: int = 1
    """seed of the experiment: weights, exploration and environments all follow from it"""
    track: bool = False
    """if toggled, this experiment is tracked with Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """the project's name in Weights & Biases"""
    wandb_entity: str | None = None
    """the entity (team) of the project in Weights & Biases"""
    capture_video: bool = False
    """whether to record videos of the first environment"""


@dataclass
class CommonArgs(RunArgs):
    """Adds what torch computes on."""

    torch_deterministic: bool = True
    """if toggled, torch uses deterministic kernels only"""
    cuda: bool = True
    """if toggled, a GPU is used when there is one"""


@dataclass
class _Saving:
    """Saving of the finished model."""

    save_model: bool = False
    """whether to save the model into the `runs/{run_name}` folder and evaluate it"""
    upload_model: bool = False
    """whether to upload the saved model to Hugging Face"""
    hf_entity: str = ""
    """the user or organisation on Hugging Face to upload to; empty means the token's owner"""


@dataclass
class SaveArgs(_Saving, CommonArgs):
    """What every run has, and saving of the finished model."""


@dataclass
class JaxSaveArgs(_Saving, RunArgs):
    """The same for algorithms in JAX, which takes a GPU by itself where it finds one."""
