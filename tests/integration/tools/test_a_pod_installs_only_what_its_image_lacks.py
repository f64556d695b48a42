"""The init container's program with a real pip: beside the image, from the cache alone, and with a sentence when it fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import cleanrl_worker

PROJECT = Path(cleanrl_worker.__file__).resolve().parents[1]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def install(run_tool: Run, small_distribution: Path, fresh_python: Path, tmp_path: Path) -> Run:
    """The program in an image of its own, with the small packages in its sets."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {
            "PYTHONPATH": f"{small_distribution}{os.pathsep}{PROJECT}",
            "PATH": "/usr/bin:/bin",
            "PIP_CONFIG_FILE": os.devnull,
        }
        prefix = ["--prefix", tmp_path / "requirements"]
        return run_tool("install_for_pod", "--set", "atari", *prefix, *arguments, python=fresh_python, **environment)

    return run


def sees(python: Path, module: str, tmp_path: Path) -> bool:
    """Whether the worker's Python finds a module, with the folder on its path as the pod has it."""
    environment = {"PYTHONPATH": str(tmp_path / "requirements" / "site-packages")}
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, env=environment).returncode == 0


def test_what_the_image_has_is_not_installed_again(
    install: Run, fresh_python: Path, index: Path, tmp_path: Path
) -> None:
    pip = [fresh_python, "-m", "pip", "install", "-q", "--no-index", "--find-links", index, "tiny-helper"]
    subprocess.run(pip, check=True, env={"PIP_CONFIG_FILE": os.devnull, "PATH": "/usr/bin:/bin"})
    done = install("--wheels", index)
    assert done.returncode == 0, done.stderr
    assert "--no-index" in done.stderr
    assert "installed: atari" in done.stdout
    assert sees(fresh_python, "tiny_ale, tiny_helper", tmp_path)
    assert not list((tmp_path / "requirements").rglob("tiny_helper*")), "the image has it"
    assert subprocess.run([fresh_python, "-c", "import tiny_ale"], capture_output=True).returncode != 0, (
        "image untouched"
    )


def test_a_complete_image_needs_nothing(install: Run, fresh_python: Path, index: Path, tmp_path: Path) -> None:
    pip = [fresh_python, "-m", "pip", "install", "-q", "--no-index", "--find-links", index, "tiny-ale"]
    subprocess.run(pip, check=True, env={"PIP_CONFIG_FILE": os.devnull, "PATH": "/usr/bin:/bin"})
    done = install("--wheels", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (0, "the image has all of atari\n")
    assert (tmp_path / "requirements" / "site-packages").is_dir()


def test_a_cache_laid_out_by_install_extras_is_understood(
    install: Run, fresh_python: Path, index: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "wheels").symlink_to(index)
    assert install("--wheels", tmp_path / "cache").returncode == 0
    assert sees(fresh_python, "tiny_ale", tmp_path)


def test_an_empty_cache_is_one_sentence_that_says_how_to_fill_it(install: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    failed = install("--wheels", tmp_path / "empty")
    assert failed.returncode == 1
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("error: the wheel cache does not hold the packages of atari; fill its claim with: ")
    assert "--set atari --wheel-cache" in last
    assert "Traceback" not in failed.stderr


def test_an_index_that_is_away_is_named(install: Run) -> None:
    failed = install("--index-url", "http://127.0.0.1:9/simple")
    assert failed.returncode == 1
    assert "can't be had from http://127.0.0.1:9/simple" in failed.stderr.splitlines()[-1]


def test_an_unknown_set_is_a_bad_command_line(run_tool: Run, tmp_path: Path) -> None:
    refused = run_tool("install_for_pod", "--set", "atarri", "--prefix", tmp_path)
    assert refused.returncode == 2
    assert "did you mean atari" in refused.stderr
