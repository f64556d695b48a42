from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from cleanrl_worker.tools import installer
from cleanrl_worker.tools.installer import Installer, InstallError


@pytest.mark.parametrize(
    ("words", "unreachable"),
    [
        ("ERROR: No matching distribution found for optuna>=4.5", True),
        ("Failed to establish a new connection: [Errno 111] Connection refused", True),
        ("Because optuna was not found in the cache and you require optuna>=4.5", True),
        ("hint: Packages were unavailable because the network was disabled.", True),
        ("Because optuna was not found in the package registry", True),
        ("error sending request for url (https://example.org/simple/optuna/)", True),
        ("ERROR: Could not install packages due to an OSError: No space left on device", False),
        ("error: externally-managed-environment", False),
        ("ERROR: Failed building wheel for box", False),
    ],
)
def test_missing_network_is_told_from_other_failures(
    words: str, unreachable: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InstallError, match="ended with exit code 3") as caught:
        installer.run([sys.executable, "-c", f"import sys; print({words!r}, file=sys.stderr); sys.exit(3)"])
    assert caught.value.unreachable is unreachable
    assert words in capsys.readouterr().err


def test_uv_is_preferred_and_pip_gets_its_wheels() -> None:
    both = Installer(Path("/env/bin/python"), uv="/bin/uv", pip=("/env/bin/python", "-m", "pip"))
    assert both.install_command(["a>=1"])[:3] == ["/bin/uv", "pip", "install"]
    assert both.wheel_command(["a>=1"], Path("w"))[:4] == ["/env/bin/python", "-m", "pip", "wheel"]
    only_uv = Installer(Path("/env/bin/python"), uv="/bin/uv", pip=None)
    assert only_uv.wheel_command(["a>=1"], Path("w"))[:7] == [
        *("/bin/uv", "tool", "run", "--python", "/env/bin/python", "pip", "wheel")
    ]
    only_pip = Installer(Path("/env/bin/python"), uv=None, pip=("/env/bin/python", "-m", "pip"))
    offline = only_pip.install_command(["a>=1"], Path("w"))
    assert offline[3] == "install" and offline[-4:] == ["--no-index", "--find-links", "w", "a>=1"]


def test_neither_uv_nor_pip_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(installer, "_find_pip", lambda python: None)
    with pytest.raises(InstallError, match="-m ensurepip --upgrade"):
        Installer.find()
