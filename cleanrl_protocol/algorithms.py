"""The algorithm names that both sides agree on: the resource's schema lists them, the worker's registry maps them."""

from __future__ import annotations

ALGORITHMS: tuple[str, ...] = (
    "c51",
    "c51_atari",
    "c51_atari_jax",
    "c51_jax",
    "ddpg_continuous_action",
    "ddpg_continuous_action_jax",
    "dqn",
    "dqn_atari",
    "dqn_atari_jax",
    "dqn_jax",
    "ppg_procgen",
    "ppo",
    "ppo_atari",
    "ppo_atari_envpool",
    "ppo_atari_envpool_xla_jax",
    "ppo_atari_envpool_xla_jax_scan",
    "ppo_atari_lstm",
    "ppo_atari_multigpu",
    "ppo_continuous_action",
    "ppo_gru",
    "ppo_pettingzoo_ma_atari",
    "ppo_procgen",
    "ppo_rnd_envpool",
    "pqn",
    "pqn_atari_envpool",
    "pqn_atari_envpool_lstm",
    "qdagger_dqn_atari_impalacnn",
    "qdagger_dqn_atari_jax_impalacnn",
    "rainbow_atari",
    "rpo_continuous_action",
    "sac_atari",
    "sac_continuous_action",
    "td3_continuous_action",
    "td3_continuous_action_jax",
)

REQUIREMENT_SETS: tuple[str, ...] = (
    "base",
    "atari",
    "procgen",
    "mujoco",
    "dm-control",
    "box2d",
    "minigrid",
    "envpool",
    "jax",
    "pettingzoo",
    "optuna",
)

CPU_ONLY: frozenset[str] = frozenset(
    {
        "c51",
        "ddpg_continuous_action",
        "dqn",
        "ppo_continuous_action",
        "pqn",
        "rpo_continuous_action",
        "sac_continuous_action",
        "td3_continuous_action",
    }
)
"""Algorithms whose small dense networks are computed on the CPU whatever devices there are."""

CPU_ONLY_ON_VECTORS: frozenset[str] = frozenset({"ppo"})
"""Algorithms that do so for vectors, and use a GPU for images and for the network `shared`."""

IMAGES_OF: tuple[str, ...] = ("MiniGrid-", "BabyAI-")
"""How the ids of environments begin whose images those algorithms take."""


def leaves_gpu_idle(algo: str, env_id: str, network: str | None = None) -> bool:
    """Whether a GPU would do nothing for this run. `network` is the algorithm's flag of that name."""
    if algo in CPU_ONLY:
        return True
    return algo in CPU_ONLY_ON_VECTORS and network != "shared" and not env_id.startswith(IMAGES_OF)
