"""An operator that is started where it can't run says so, and what to do, instead of a traceback."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from cleanrl_operator.kube import Kube, KubeError
from cleanrl_operator.program import CannotStart, Operator
from cleanrl_operator.settings import Settings


@pytest.mark.parametrize("text", [None, "kind: Config\n", "no: [yaml"])
def test_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(KubeError, match=r"no cluster is known .*: set KUBECONFIG"):
        asyncio.run(Kube.connect(str(file)))


def test_with_a_port_that_somebody_else_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kube, "connect", AsyncMock(return_value=AsyncMock()))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        operator = Operator(Settings(health_port=taken.getsockname()[1]), Mock())
        with pytest.raises(CannotStart, match="set CLEANRL_OPERATOR_HEALTH_PORT to one that is free"):
            asyncio.run(operator._open())
