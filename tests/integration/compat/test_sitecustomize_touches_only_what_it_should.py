from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cleanrl_worker.compat import SITE_FLAG, child_environment, site_directory


def python(program: str, environ: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], env=environ, cwd=cwd, capture_output=True, text=True, check=False
    )


def test_grandchildren_are_patched(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys;"
        "subprocess.run([sys.executable, '-c', 'import gym, gymnasium; print(gym is gymnasium, gym.make.__name__)'])"
    )
    done = python(program, child_environment(os.environ), tmp_path)
    assert done.stdout == "True make\n", done.stderr
    assert "gets gymnasium instead" in done.stderr


def test_without_the_flag_nothing_happens(tmp_path: Path) -> None:
    environ = {**child_environment(os.environ), SITE_FLAG: "0"}
    done = python("import sys; print('cleanrl_worker' in sys.modules)", environ, tmp_path)
    assert done.stdout == "False\n"


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    program = "import sys; print({'gymnasium', 'numpy', 'torch', 'wandb'} & set(sys.modules))"
    assert python(program, child_environment(os.environ), tmp_path).stdout == "set()\n"


def test_the_hidden_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.hidden_ran = True\n")
    environ = child_environment({**os.environ, "PYTHONPATH": str(tmp_path)})
    done = python("print(hidden_ran, 'cleanrl_worker.compat' in __import__('sys').modules)", environ, tmp_path)
    assert done.stdout == "True True\n", done.stderr


def test_the_scripts_own_modules_are_not_shadowed(tmp_path: Path) -> None:
    for name in ("config", "tools", "agents", "compat", "site_packages_of_mine"):
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    program = (
        "import config, tools, agents, compat, site_packages_of_mine; print(config.mine and tools.mine and compat.mine)"
    )
    done = python(program, child_environment({**os.environ, "PYTHONPATH": str(tmp_path)}), tmp_path)
    assert done.stdout == "True\n", done.stderr
    assert [path.name for path in site_directory().iterdir() if path.suffix == ".py"] == ["sitecustomize.py"]
