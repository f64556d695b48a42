from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from cleanrl_worker.tools import schemas


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An empty package of the worker's shape."""
    root = tmp_path / "pack"
    (root / "algorithms").mkdir(parents=True)
    (root / "training").mkdir()
    return root


def write(package: Path, name: str, text: str) -> None:
    (package / name).write_text(dedent(text))


def fields(package: Path, algo: str) -> dict[str, dict[str, Any]]:
    entry = schemas.generate(package)["algorithms"][algo]
    return {item["name"]: item for item in entry["fields"]}


def test_schemas_json_fits_the_algorithms() -> None:
    assert schemas.drift() == []


def test_every_algorithm_has_an_entry_and_no_other_has() -> None:
    files = {path.stem for path in (schemas.PACKAGE / "algorithms").glob("[!_]*.py")}
    assert set(schemas.load_schemas()["algorithms"]) == files


def test_every_flag_of_every_algorithm_says_what_it_is_for() -> None:
    silent = [
        f"{algo}.{item['name']}"
        for algo, entry in schemas.load_schemas()["algorithms"].items()
        for item in entry["fields"]
        if not item["help"]
    ]
    assert silent == []


def test_a_field_has_name_type_default_help_optional_runtime_only(package: Path) -> None:
    write(
        package,
        "algorithms/toy.py",
        '''
        """A toy.

        More about it.
        """
        import os
        from dataclasses import dataclass, field
        from typing import Annotated, ClassVar, Literal, Optional

        import tyro

        ACTION_SPACES = ("discrete",)
        THOUSAND = 10 ** 3
        Backend = Literal["gloo", "nccl"]

        @dataclass
        class Args:
            limit: ClassVar[int] = 3
            exp_name: str = os.path.basename(__file__)[: -len(".py")]
            """the name of this experiment"""
            env_id: str = "Hopper-v4"
            """the environment,
            by its id"""
            total_timesteps: int = 500 * THOUSAND
            cuda: bool = True
            gamma: float = 1
            target_kl: float | None = None
            entity: Optional[str] = None
            old_style: float = None
            device_ids: list[int] = field(default_factory=list)
            layers: tuple[int, ...] = field(default_factory=lambda: (64, 64))
            backend: Backend = "gloo"
            scale: "float" = -0.5
            quiet: Annotated[int, tyro.conf.arg(help="x")] = int(1e3)
            batch_size: int = 0
            num_envs: int = 4
        ''',
    )
    entry = schemas.generate(package)["algorithms"]["toy"]
    assert entry["module"] == "pack.algorithms.toy"
    assert entry["summary"] == "A toy."
    assert entry["env_id"] == "Hopper-v4"
    assert entry["total_timesteps"] == 500_000
    assert entry["action_spaces"] == ["discrete"]
    assert entry["requirements"] == ["base", "mujoco"]
    found = fields(package, "toy")
    assert "limit" not in found
    assert found["exp_name"] == {
        "name": "exp_name",
        "type": "str",
        "default": "toy",
        "help": "the name of this experiment",
        "optional": False,
        "runtime_only": False,
    }
    assert found["env_id"]["help"] == "the environment, by its id"
    assert {name: (item["type"], item["default"], item["optional"]) for name, item in found.items()} == {
        "exp_name": ("str", "toy", False),
        "env_id": ("str", "Hopper-v4", False),
        "total_timesteps": ("int", 500_000, False),
        "cuda": ("bool", True, False),
        "gamma": ("float", 1.0, False),
        "target_kl": ("float", None, True),
        "entity": ("str", None, True),
        "old_style": ("float", None, True),
        "device_ids": ("list[int]", [], False),
        "layers": ("list[int]", [64, 64], False),
        "backend": ("str", "gloo", False),
        "scale": ("float", -0.5, False),
        "quiet": ("int", 1000, False),
        "batch_size": ("int", 0, False),
        "num_envs": ("int", 4, False),
    }
    assert found["backend"]["choices"] == ["gloo", "nccl"]
    assert [name for name, item in found.items() if item["runtime_only"]] == ["batch_size"]


def test_a_batch_size_with_a_real_default_is_a_flag(package: Path) -> None:
    write(package, "algorithms/q.py", "class Args:\n    batch_size: int = 128\n")
    assert fields(package, "q")["batch_size"]["runtime_only"] is False


@pytest.mark.parametrize(
    ("statement", "base"),
    [
        ("from pack.training.args import Common", "Common"),
        ("from pack.training.args import Common as C", "C"),
        ("from ..training.args import Common", "Common"),
        ("from pack.training import args", "args.Common"),
        ("from pack.training import Common", "Common"),
    ],
)
def test_inherited_fields_are_found_however_they_are_imported(package: Path, statement: str, base: str) -> None:
    write(package, "training/__init__.py", "from pack.training.args import Common\n")
    write(
        package,
        "training/args.py",
        '''
        SEED = 7
        class Root:
            exp_name: str = __file__
            """name"""
        class Common(Root):
            seed: int = SEED
            """the seed"""
            cuda: bool = True
        ''',
    )
    write(package, "algorithms/heir.py", f"{statement}\nclass Args({base}):\n    extra: int = 1\n    seed: int = 2\n")
    found = fields(package, "heir")
    assert list(found) == ["exp_name", "seed", "cuda", "extra"]
    assert found["exp_name"]["default"] == "heir"
    assert found["seed"]["default"] == 2
    assert found["seed"]["help"] == "the seed"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = 1\n", "dataclass called Args"),
        ("class Args:\n    seed: int = compute()\n", "can't work out the default compute()"),
        ("class Args:\n    seed: int\n", "field seed has no default"),
        ("class Args:\n    seed: complex = 1\n", "no flag can have the type complex"),
        ("from elsewhere import Base\nclass Args(Base):\n    seed: int = 1\n", "outside of the package"),
        ("class Args(Nobody):\n    seed: int = 1\n", "can't tell which class Nobody is"),
    ],
)
def test_what_cannot_be_described_is_an_error_that_names_file_and_line(
    package: Path, source: str, problem: str
) -> None:
    write(package, "algorithms/bad.py", source)
    with pytest.raises(schemas.SchemaError, match=r"algorithms/bad\.py:\d+: ") as caught:
        schemas.generate(package)
    assert problem in str(caught.value)


def test_action_spaces_come_from_the_check_that_the_algorithm_makes(package: Path) -> None:
    write(
        package,
        "algorithms/a.py",
        "from pack.training.envs import require_discrete_actions\nclass Args:\n    x: int = 1\n",
    )
    write(package, "algorithms/__init__.py", "")
    write(package, "algorithms/b.py", "from pack.algorithms import a\nclass Args(a.Args):\n    y: int = 1\n")
    write(package, "algorithms/c.py", "class Args:\n    x: int = 1\n")
    found = {name: entry["action_spaces"] for name, entry in schemas.generate(package)["algorithms"].items()}
    assert found == {"a": ["discrete"], "b": ["discrete"], "c": None}


def test_every_algorithm_says_which_actions_it_takes() -> None:
    algorithms = schemas.load_schemas()["algorithms"]
    assert [name for name, entry in algorithms.items() if not entry["action_spaces"]] == []
    assert all("continuous" in entry["action_spaces"] for name, entry in algorithms.items() if "continuous" in name)


def test_drift_is_named(package: Path) -> None:
    write(package, "algorithms/a.py", "class Args:\n    lr: float = 1e-3\n")
    assert schemas.drift(package) == ["a: has no entry"]
    (package / "schemas.json").write_text(schemas.render(schemas.generate(package)))
    assert schemas.drift(package) == []
    write(package, "algorithms/a.py", "class Args:\n    lr: float = 1e-4\n    gamma: float = 0.99\n")
    assert schemas.drift(package) == ["a: fields differ: lr, gamma"]
    (package / "algorithms/a.py").unlink()
    assert schemas.drift(package) == ["a: has an entry and no source"]
    (package / "schemas.json").write_text("{")
    assert "is not JSON" in schemas.drift(package)[0]


def test_helpers_beside_the_algorithms_are_not_algorithms(package: Path) -> None:
    write(package, "algorithms/__init__.py", "")
    write(package, "algorithms/_shared.py", "")
    assert schemas.generate(package)["algorithms"] == {}


def test_loading_them_imports_nothing_heavy() -> None:
    code = (
        "import sys; from cleanrl_worker.tools.schemas import load_schemas; load_schemas();"
        "print(sorted({'torch','numpy','gymnasium','tyro','pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_writes_and_checks(package: Path) -> None:
    write(package, "algorithms/a.py", "class Args:\n    lr: float = 1e-3\n")
    target = package / "schemas.json"
    assert schemas.main(["--check"], package) == 1
    assert schemas.main([], package) == 0
    assert json.loads(target.read_text())["algorithms"]["a"]["fields"][0]["default"] == 1e-3
    assert schemas.main(["--check"], package) == 0
    write(package, "algorithms/a.py", "class Args:\n    lr: float = what()\n")
    assert schemas.main(["--check"], package) == 2
