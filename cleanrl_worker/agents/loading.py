"""Model files: ours, upstream's and MOSAIC's, told apart by keys and shapes. Only tensors and plain data are ever unpickled.

Known layouts of a file: a bare state_dict; `{"model_state_dict", "global_step", ...}`; `{"model_weights", "args"}` (C51); a
tuple of state_dicts, the actor's first (DDPG, TD3, SAC); flax's bytes of the like (see `flax_files.py`), or of the flags and
the networks (the compiled PPOs). Known networks: see `build_agent` here, and the value and actor networks in
`evals/policies.py`.
"""

from __future__ import annotations

import math
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cleanrl_worker.agents.flax_files import is_flax, read_flax
from cleanrl_worker.agents.gru import GRUAgent
from cleanrl_worker.agents.minigrid import CODES, MinigridAgent
from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.training.errors import BadConfig

Weights = Mapping[str, Any]


def read_model(path: Path) -> Any:
    """What the file holds, as it was saved. Raises BadConfig for files that are not models."""
    try:
        with path.open("rb") as file:
            head = file.read(1)
        if is_flax(head):
            return read_flax(path)
        model = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise BadConfig(f"The model {path} does not exist.") from error
    except BadConfig:
        raise
    except Exception as error:  # torch raises what it likes for a file that is none
        raise BadConfig(
            f"{path} is not a model file that can be read safely: {_why_not(error)}. "
            "Choose a checkpoint, or a file that --save-model wrote."
        ) from error
    if not _finite(model):
        raise BadConfig(
            f"{path} holds weights that are not finite: the training that it comes from had diverged. "
            "Choose a model or a checkpoint from before."
        )
    return model


def _why_not(error: Exception) -> str:
    """torch's reasons are pages long, and some advise to load the file in spite of them."""
    text = str(error)
    if isinstance(error, EOFError):
        return "it is empty or cut off"
    if "PytorchStreamReader" in text:
        return "it is damaged or cut off"
    if isinstance(error, pickle.UnpicklingError) and (named := re.search(r"GLOBAL:? (\S+)", text)):
        return f"it holds more than weights, namely {named[1]}"
    return "it holds no weights that torch saved"


def _finite(model: Any) -> bool:
    if isinstance(model, torch.Tensor):
        return not model.is_floating_point() or bool(torch.isfinite(model).all())
    if isinstance(model, Mapping):
        return all(_finite(value) for value in model.values())
    return all(_finite(value) for value in model) if isinstance(model, list | tuple) else True


def write_model(model: Any, path: Path) -> None:
    """Write a model file, whole or not at all: bytes as they are (flax's), anything else as torch saves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    if isinstance(model, bytes):
        temporary.write_bytes(model)
    else:
        torch.save(as_tensors(model), temporary)
    temporary.rename(path)


def weights_and_step(model: Any) -> tuple[Any, int]:
    """The weights in a loaded model and the step they are from: CLEANRL_RESUME_GLOBAL_STEP, or the file's own, or 0."""
    step = model.get("global_step", 0) if isinstance(model, dict) else 0
    given = os.environ.get("CLEANRL_RESUME_GLOBAL_STEP", "")
    return weights_of(model), int(given) if given.isdigit() else int(step)


def weights_of(model: Any) -> Any:
    """The state_dict (or tuple of them) inside any of the known layouts."""
    if isinstance(model, dict):
        for key in ("model_state_dict", "model_weights"):
            if key in model:
                return model[key]
        if isinstance(flags := model.get("0"), Mapping) and "env_id" in flags:  # flax numbers lists
            return model["1"]
    return model


def load_into(agent: Any, weights: Any, *, whole: bool = False) -> None:
    """Put foreign weights into an agent. Raises ValueError with the names that do not fit.

    With `whole` the agent must take all that there is: a network that had more parts (another layer, a scale of its own, a
    mission) is another network without them, and what was learned above them means nothing.
    """
    if not isinstance(agent, nn.Module):
        agent.load_state_dict(weights)
        return
    own = agent.state_dict()
    if "masked" in own:  # set by a flag, not learned: MOSAIC's files do without
        weights = {"masked": own["masked"], **weights}
    missing = sorted(set(own) - set(weights))
    wrong = [k for k in own if k in weights and tuple(own[k].shape) != tuple(weights[k].shape)]
    if missing or wrong:
        raise ValueError(f"missing: {', '.join(missing) or 'none'}; of another shape: {', '.join(wrong) or 'none'}")
    if whole and (more := sorted(set(weights) - set(own) - {"masked"})):
        raise ValueError(f"they have more parts than this network: {', '.join(more)}")
    agent.load_state_dict({name: torch.as_tensor(weights[name]) for name in own})


def as_tensors(model: Any) -> Any:
    """The same structure with NumPy arrays turned into tensors, as model files have them."""
    import numpy as np

    if isinstance(model, np.ndarray | np.generic):
        return torch.from_numpy(np.array(model))
    if isinstance(model, Mapping):
        return {key: as_tensors(value) for key, value in model.items()}
    if isinstance(model, list | tuple):
        return type(model)(as_tensors(value) for value in model)
    return model


def build_agent(weights: Weights) -> MLPAgent | MinigridAgent | GRUAgent | None:
    """The discrete actor-critic these weights belong to, loaded; None when they belong to none of them."""

    def shape(name: str) -> tuple[int, ...]:
        return tuple(weights[name].shape)

    agent: MLPAgent | MinigridAgent | GRUAgent
    if "cnn.network.0.weight" in weights:
        actions, inputs = shape("actor.2.weight")[0], shape("actor.0.weight")[1]
        if "cnn.network.7.weight" in weights:  # ours: a linear layer ends the backbone
            features, flat = shape("cnn.network.7.weight")
            agent = MinigridAgent(
                actions,
                view=_view(flat),
                features=features,
                scale=float(weights.get("cnn.scale", CODES)),
                words=shape("mission.weight")[0] if "mission.weight" in weights else None,
            )
        else:  # MOSAIC's: the heads sit on the flattened image
            agent = MinigridAgent(actions, view=_view(inputs), features=None, scale=255.0)
    elif "gru.weight_ih_l0" in weights:
        layers = sum(name.startswith("gru.weight_ih_l") for name in weights)
        actions, hidden = shape("actor.weight")
        masked = torch.as_tensor(weights.get("masked", ())).nonzero().flatten().tolist()
        agent = GRUAgent(shape("encoder.0.weight")[1], actions, hidden, layers, masked)
    elif "actor.4.weight" in weights and "critic.4.weight" in weights:  # ours, upstream's and MOSAIC's alike
        width, obs_size = shape("actor.0.weight")
        agent = MLPAgent(obs_size, shape("actor.4.weight")[0], width=width)
    elif "network.0.weight" in weights and "actor.weight" in weights:
        width, obs_size = shape("network.0.weight")
        agent = MLPAgent(obs_size, shape("actor.weight")[0], shared=True, width=width)
    else:
        return None
    load_into(agent, weights)
    return agent


def _view(flat: int) -> int:
    view = math.isqrt(flat // 64)
    if 64 * view * view != flat:
        raise BadConfig(f"The model's backbone has {flat} outputs, which no square view of 64 channels has.")
    return view
