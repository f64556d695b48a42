"""The Hugging Face hub: uploading a finished model, for `--upload-model`, and fetching a teacher."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from cleanrl_worker.training.errors import BadConfig


def check(args: Any) -> None:
    """Refuse before the first step what could only fail after the last."""
    if not args.upload_model:
        return
    if not args.save_model:
        raise BadConfig("--upload-model uploads what --save-model saves: give both.")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise BadConfig(
            "--upload-model needs the package huggingface_hub: pip install huggingface_hub, or leave the flag out."
        )


def upload(args: Any, folder: Path, model: Path, returns: list[float]) -> str:
    """Put the model and its event files into `{entity}/{env_id}-{exp_name}-seed{seed}`. The token is the library's business."""
    from huggingface_hub import HfApi  # type: ignore[import-not-found, unused-ignore] # an optional package

    api = HfApi()
    entity = args.hf_entity or api.whoami()["name"]
    repository = f"{entity}/{args.env_id.replace('/', '-')}-{args.exp_name}-seed{args.seed}"
    api.create_repo(repo_id=repository, exist_ok=True)
    card = folder / "README.md"
    mean = (
        f"Mean return over {len(returns)} episodes: {sum(returns) / len(returns):.2f}." if returns else "Not evaluated."
    )
    card.write_text(f"# {args.exp_name} on {args.env_id}\n\n{mean}\n")
    api.upload_folder(repo_id=repository, folder_path=str(folder), allow_patterns=[model.name, card.name, "events.*"])
    return repository


def fetch(repository: str, filename: str) -> Path:
    """Download a model file. Raises BadConfig, with the way around the hub, when it can't be had."""
    remedy = (
        "give the teacher as a file or a run's folder with --teacher-model-path, or recorded games with "
        "--expert-trajectories."
    )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise BadConfig(
            f"The teacher {repository} is on the Hugging Face hub, and huggingface_hub is not installed: {remedy}"
        )
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repo_id=repository, filename=filename))
    except Exception as error:  # the library raises its own, those of its client and the system's
        reason = str(error).strip().partition("\n")[0]
        raise BadConfig(
            f"The teacher {filename} of {repository} can't be had from the hub ({reason}): {remedy}"
        ) from error
