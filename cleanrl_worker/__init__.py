"""The worker: runs one reinforcement learning algorithm as a supervised process.

Importing this package is free: it loads nothing but the standard library. Worker discovery (entry point group
`mosaic.workers`) calls `get_worker_metadata`.
"""

from __future__ import annotations

from dataclasses import dataclass

__version__ = "0.1.0"


@dataclass(frozen=True)
class WorkerMetadata:
    """Who this worker is."""

    name: str
    version: str
    description: str
    author: str
    homepage: str
    upstream_library: str
    upstream_version: str
    license: str


@dataclass(frozen=True)
class WorkerCapabilities:
    """What this worker can run."""

    worker_type: str
    supported_paradigms: tuple[str, ...]
    env_families: tuple[str, ...]
    action_spaces: tuple[str, ...]
    observation_spaces: tuple[str, ...]
    max_agents: int
    supports_self_play: bool
    supports_population: bool
    supports_checkpointing: bool
    supports_pause_resume: bool
    requires_gpu: bool
    gpu_memory_mb: int | None
    cpu_cores: int
    estimated_memory_mb: int

    def supports_paradigm(self, paradigm: str) -> bool:
        return paradigm in self.supported_paradigms

    def supports_env_family(self, family: str) -> bool:
        return family in self.env_families

    def is_multi_agent(self) -> bool:
        return self.max_agents > 1


def get_worker_metadata() -> tuple[WorkerMetadata, WorkerCapabilities]:
    """The pair that worker discovery expects: metadata first, capabilities second."""
    metadata = WorkerMetadata(
        name="CleanRL Worker",
        version=__version__,
        description="Single-agent reinforcement learning, one supervised process a run",
        author="MOSAIC Team",
        homepage="https://github.com/vwxyzjn/cleanrl",
        upstream_library="cleanrl",
        upstream_version="2.0.0",
        license="MIT",
    )
    capabilities = WorkerCapabilities(
        worker_type="cleanrl",
        supported_paradigms=("sequential",),
        env_families=("gymnasium", "atari", "procgen", "mujoco", "dm_control", "minigrid", "babyai"),
        action_spaces=("discrete", "continuous"),
        observation_spaces=("vector", "image"),
        max_agents=1,
        supports_self_play=False,
        supports_population=False,
        supports_checkpointing=True,
        supports_pause_resume=True,
        requires_gpu=False,
        gpu_memory_mb=None,
        cpu_cores=1,
        estimated_memory_mb=512,
    )
    return metadata, capabilities
