"""The committed code is what proto/ says, and the package stays light enough for both sides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cleanrl_protocol import mosaic_trainer_pb2, session_pb2
from cleanrl_protocol.generate import PACKAGE, generate, generated_names


def test_generated_code_matches_the_protos(tmp_path: Path) -> None:
    generate(tmp_path)
    for name in generated_names():
        fresh = (tmp_path / PACKAGE.name / name).read_text()
        assert fresh == (PACKAGE / name).read_text(), f"{name} is stale: run `python -m cleanrl_protocol.generate`"
    stray = {path.name for path in PACKAGE.glob("*_pb2*")} - set(generated_names())
    assert not stray, "generated from a proto that is gone"


def test_mosaics_handshake_has_its_numbers() -> None:
    request = (
        mosaic_trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"].methods_by_name["RegisterWorker"].input_type
    )
    expected = {
        "run_id": 1,
        "worker_id": 2,
        "worker_kind": 3,
        "proto_version": 4,
        "schema_id": 5,
        "schema_version": 6,
        "supports_pause": 7,
        "supports_checkpoint": 8,
    }
    assert request.full_name == "gymgui.trainer.RegisterWorkerRequest"
    assert {field.name: field.number for field in request.fields} == expected
    ours = session_pb2.RegisterWorkerRequest.DESCRIPTOR
    assert {field.name: field.number for field in ours.fields if field.number <= 8} == expected
    reply = mosaic_trainer_pb2.RegisterWorkerResponse.DESCRIPTOR
    assert {field.name: field.number for field in reply.fields} == {"accepted_version": 1, "session_token": 2}


def test_the_shared_package_imports_neither_side() -> None:
    modules = [path.stem for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "generate")]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module('cleanrl_protocol.' + name)\n"
        "heavy = {'torch', 'kopf', 'kubernetes', 'cleanrl_worker', 'cleanrl_operator', 'numpy', 'gymnasium'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
