from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def imports(python: Path, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def test_a_set_is_checked_installed_and_checked_again(install_extras: Run, fresh_python: Path) -> None:
    before = install_extras("--set", "atari", "--check", python=fresh_python)
    assert before.returncode == 1
    assert "missing: module tiny_ale (set atari)" in before.stdout
    assert "python -m cleanrl_worker.tools.install_extras --set atari" in before.stdout

    dry = install_extras("--set", "atari", "--dry-run", python=fresh_python)
    assert dry.returncode == 0
    assert "tiny-ale>=1.1" in dry.stdout
    assert not imports(fresh_python, "tiny_ale")

    done = install_extras("--set", "ALE", python=fresh_python)
    assert done.returncode == 0, done.stderr
    assert "installed: atari" in done.stdout
    assert imports(fresh_python, "tiny_ale") and imports(fresh_python, "tiny_helper")
    assert not imports(fresh_python, "tiny_base")

    assert install_extras("--set", "atari", "--check", python=fresh_python).returncode == 0
    listed = install_extras("--list", python=fresh_python).stdout.splitlines()
    assert [line.split()[:2] for line in listed if line.startswith(("atari", "base"))] == [
        ["base", "no"],
        ["atari", "yes"],
    ]
    assert "already installed" in install_extras("--set", "atari", python=fresh_python, network=False).stdout


def test_a_wheel_cache_serves_a_machine_without_network(
    install_extras: Run, fresh_python: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "wheels"
    wanted = ("--set", "atari", "--wheel-cache", cache)

    absent = install_extras(*wanted, python=fresh_python, network=False)
    assert absent.returncode == 1
    assert f"--set atari --wheel-cache {cache} --download-only" in absent.stderr
    assert "is there a network?" in absent.stderr
    assert "Traceback" not in absent.stderr

    filled = install_extras(*wanted, "--download-only", python=fresh_python)
    assert filled.returncode == 0, filled.stderr
    assert not imports(fresh_python, "tiny_ale")
    [record] = (cache / "sets").glob("*.json")
    assert sorted(json.loads(record.read_text())["files"]) == [
        "tiny_ale-1.2-py3-none-any.whl",
        "tiny_helper-1.0-py3-none-any.whl",
    ]
    assert "already in" in install_extras(*wanted, "--download-only", python=fresh_python, network=False).stdout

    copied = tmp_path / "copied"
    cache.rename(copied)
    done = install_extras("--set", "atari", "--wheel-cache", copied, python=fresh_python, network=False)
    assert done.returncode == 0, done.stderr
    assert imports(fresh_python, "tiny_ale") and imports(fresh_python, "tiny_helper")


def test_a_wheel_that_was_changed_is_never_installed(
    install_extras: Run, fresh_python: Path, tmp_path: Path, index: Path
) -> None:
    cache = tmp_path / "wheels"
    wanted = ("--set", "atari", "--wheel-cache", cache)
    assert install_extras(*wanted, "--download-only", python=fresh_python).returncode == 0
    wheel = cache / "wheels" / "tiny_ale-1.2-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"\0")

    refused = install_extras(*wanted, python=fresh_python, network=False)
    assert refused.returncode == 1
    assert "tiny_ale-1.2-py3-none-any.whl does not have its recorded checksum" in refused.stderr
    assert not imports(fresh_python, "tiny_ale")

    healed = install_extras(*wanted, python=fresh_python)
    assert healed.returncode == 0, healed.stderr
    assert wheel.read_bytes() == (index / wheel.name).read_bytes()
    assert imports(fresh_python, "tiny_ale")


def test_a_whole_environment_is_made_once_and_made_again_when_broken(
    install_extras: Run, fresh_python: Path, tmp_path: Path
) -> None:
    venvs, wheels = tmp_path / "venvs", tmp_path / "wheels"
    wanted = ("--set", "atari", "--venv-cache", venvs, "--wheel-cache", wheels)
    first = install_extras(*wanted, python=fresh_python)
    assert first.returncode == 0, first.stderr
    python = Path(first.stdout.strip())
    assert python.is_relative_to(venvs)
    assert imports(python, "tiny_ale") and imports(python, "tiny_base") and imports(python, "cleanrl_worker.link")
    assert not imports(fresh_python, "tiny_ale")

    again = install_extras(*wanted, python=fresh_python, network=False)
    assert again.stdout.strip() == str(python)
    assert "reused" in again.stderr

    next((python.parents[1] / "lib").glob("python*/site-packages/tiny_base.py")).unlink()
    mended = install_extras(*wanted, python=fresh_python, network=False)
    assert mended.returncode == 0, mended.stderr
    assert "broken; making it again" in mended.stderr
    assert imports(python, "tiny_base")


def test_two_at_once_make_one_environment(
    install_extras: Run, fresh_python: Path, tmp_path: Path, small_distribution: Path
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    wanted = ("--set", "base", "--venv-cache", tmp_path / "venvs")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: install_extras(*wanted, python=fresh_python), range(2)))
    assert [done.returncode for done in both] == [0, 0], [done.stderr for done in both]
    assert both[0].stdout == both[1].stdout
    assert sorted("making the environment" in done.stderr for done in both) == [False, True]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--set", "atarri"), "did you mean atari?"),
        ((), "name the sets to install"),
        (("--set", "atari", "--download-only"), "--download-only needs --wheel-cache"),
    ],
)
def test_a_bad_command_line_gets_a_sentence(run_tool: Run, arguments: tuple[str, ...], sentence: str) -> None:
    done = run_tool("install_extras", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
