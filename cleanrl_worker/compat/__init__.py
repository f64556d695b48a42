"""Patches for scripts that are not ours: FastLane, folders, resume, and the gymnasium 0.29 that many were written for.

`install` is called by the launcher before it starts a foreign script, and by `site/sitecustomize.py` in the Pythons that
such a script starts itself. It costs next to nothing: each patch waits until the library it changes is imported, so a
process that never imports gymnasium never pays for it. Our own algorithms run without any of this.

The patches stand in one table, `PATCHES`. Each is applied on its own; one that fails says so on stderr and the script
goes on without it.
"""

from __future__ import annotations

from cleanrl_worker.compat import (
    gym_alias,
    gym_make,
    gymnasium029,
    jax_numpy,
    models,
    multi_agent,
    numpy_scalars,
    procgen_alias,
    stable_baselines,
    tracking,
)
from cleanrl_worker.compat.hooks import Patch, apply_when_imported
from cleanrl_worker.compat.requirements import MissingModule, foreign_requirements
from cleanrl_worker.compat.site import SITE_FLAG, child_environment, site_directory

__all__ = [
    "PATCHES",
    "SITE_FLAG",
    "MissingModule",
    "child_environment",
    "foreign_requirements",
    "install",
    "site_directory",
]

PATCHES: tuple[Patch, ...] = (
    Patch("FastLane, registrations, procedural generation and video in gym.make", "gymnasium", gym_make.patch),
    Patch("wrappers forward attributes", "gymnasium.core", gymnasium029.patch_core),
    Patch("old wrapper names", "gymnasium.wrappers", gymnasium029.patch_wrappers),
    Patch("wrappers around gym 0.23's vectors", "gymnasium.wrappers", gym_alias.patch_wrappers),
    Patch("RecordVideo.enabled and .path", "gymnasium.wrappers.rendering", gymnasium029.patch_record_video),
    Patch("same-step autoreset (sync)", "gymnasium.vector.sync_vector_env", gymnasium029.patch_sync_vector),
    Patch("same-step autoreset (async)", "gymnasium.vector.async_vector_env", gymnasium029.patch_async_vector),
    Patch("envpool's gym interface", "envpool", gym_alias.patch_envpool),
    Patch(
        "stable-baselines3's vectors", "stable_baselines3.common.vec_env.base_vec_env", stable_baselines.patch_vector
    ),
    Patch("stable-baselines3's replay", "stable_baselines3.common.buffers", models.patch_replay_buffer),
    Patch("concat_vec_envs_v1(base_class='gym')", "supersuit", multi_agent.patch_supersuit),
    Patch("ROMs for several players", "pettingzoo.atari.base_atari_env", multi_agent.patch_roms),
    Patch("arrays of one element for a number", "numpy", numpy_scalars.patch),
    Patch("jnp.clip(a_min=..., a_max=...)", "jax.numpy", jax_numpy.patch_clip),
    Patch("jax.tree_map", "jax", jax_numpy.patch_tree_map),
    Patch("train states of dataclasses", "flax.training.train_state", jax_numpy.patch_train_state),
    Patch("TensorBoard folder", "torch.utils.tensorboard.writer", tracking.patch_summary_writer),
    Patch("TensorBoard folder (tensorboardX)", "tensorboardX.writer", tracking.patch_summary_writer),
    Patch("W&B defaults", "wandb", tracking.patch_wandb),
    Patch("torch.save makes folders", "torch.serialization", models.patch_save),
    Patch("resume", "torch.nn.modules.module", models.patch_resume),
    Patch("resume before learning", "torch.optim.optimizer", models.patch_first_step),
    Patch("resume with flax", "flax", models.refuse_flax),
    Patch("number of evaluation episodes", "cleanrl_utils.evals.ppo_eval", models.patch_evaluation),
)

_installed = False


def install(*, foreign: bool = True) -> None:
    """Arrange for every patch to be applied when its library is imported, or now if it was. Once per process.

    `foreign` false installs nothing: our own algorithms publish from their loops and speak gymnasium 1.x.
    """
    global _installed
    if _installed or not foreign:
        return
    _installed = True
    tracking.set_wandb_environment()
    gym_alias.install()
    procgen_alias.install()
    for patch in PATCHES:
        apply_when_imported(patch)
