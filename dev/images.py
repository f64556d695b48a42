"""`make images`: build the operator's and the worker's image and say what came out: names, sizes, bills of materials.

docker, podman or buildah does the work, whichever is there (on Debian, as root, buildah is installed). The base is
python:3.11-slim; where no registry can be reached, a stand-in of the same shape is made from Debian's packages. What is
written goes to build/images/: archives for `devcluster load-image` and CycloneDX files. `--clean` removes all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zlib
from collections.abc import Sequence
from pathlib import Path

from devcluster.progress import StepFailed, run_step, step

PROJECT = Path(__file__).resolve().parent.parent
OUTPUT = PROJECT / "build" / "images"
BASE = "python:3.11-slim"
STAND_IN = "localhost/cleanrl-python-stand-in:3.11"
DEBIAN = "bookworm"
"""The release whose Python is 3.11."""
RECIPES = {"operator": "Dockerfile", "worker": "worker-image/Dockerfile"}
FREE_BYTES = {"cpu": 16 * 2**30, "cuda": 32 * 2**30}
"""What building and archiving both images takes on the way."""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class Refused(Exception):
    """Something is missing; the message says what to do about it."""


def main() -> int:
    """Build, or remove what was built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=sorted(RECIPES), help="one of the two images")
    parser.add_argument("--torch", choices=("cpu", "cuda"), default="cpu", help="the worker with or without CUDA (cpu)")
    parser.add_argument("--extras", default="", help='requirement sets of the worker, such as "atari minigrid"')
    parser.add_argument("--base", default=BASE, help=f"the image to build on ({BASE})")
    parser.add_argument("--tag", default=version(), help="the images' tag (the project's version)")
    parser.add_argument(
        "--archive", action="store_true", help="write the worker too as an archive (the operator always is)"
    )
    parser.add_argument("--clean", action="store_true", help="remove the images, the stand-in and build/images")
    arguments = parser.parse_args()
    try:
        builder = Builder.find()
        if arguments.clean:
            builder.clean(arguments.tag)
            return 0
        extras = requirement_sets(arguments.extras)
        ask_for_disk(arguments.torch)
        base = builder.base(arguments.base)
        for part in [arguments.only] if arguments.only else sorted(RECIPES):
            options = {"EXTRAS": " ".join(extras), "TORCH": arguments.torch} if part == "worker" else {}
            builder.build(part, arguments.tag, base, options, keep=arguments.archive or part == "operator")
    except (Refused, StepFailed) as refusal:
        sys.stderr.write(f"images: {refusal}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nimages: interrupted; `make images-clean` removes what is left\n")
        return 130
    return 0


class Builder:
    """docker, podman or buildah."""

    def __init__(self, program: str) -> None:
        self.program = program
        # Without it every RUN would need a runtime that makes namespaces: not everywhere allowed, and not needed here.
        self._environment = {"BUILDAH_ISOLATION": "chroot", **os.environ}

    @classmethod
    def find(cls) -> Builder:
        """The first that is there and works."""
        if (
            shutil.which("docker")
            and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
        ):
            return cls("docker")
        for program in ("podman", "buildah"):
            if shutil.which(program):
                return cls(program)
        install("buildah")
        return cls("buildah")

    def base(self, wanted: str) -> str:
        """The name of the base that is there; without a registry, of a stand-in."""
        if self._has(wanted):
            return wanted
        pulled = subprocess.run([self.program, "pull", wanted], capture_output=True, text=True, check=False)
        if pulled.returncode == 0:
            return wanted
        if wanted != BASE or self.program == "docker":
            raise Refused(f"{wanted} can't be had: {pulled.stderr.strip().splitlines()[-1]}")
        sys.stderr.write(f"No registry gives {BASE}: building on a stand-in, Debian {DEBIAN} with its Python 3.11.\n")
        if not self._has(STAND_IN):
            self._make_stand_in()
        return STAND_IN

    def build(self, part: str, tag: str, base: str, options: dict[str, str], *, keep: bool) -> None:
        """One image; its archive if it is to be kept, its bill of materials, and a line about it."""
        name = f"localhost/cleanrl-{part}:{tag}"
        arguments = {"PYTHON": base, "VERSION": version(), "REVISION": revision(), **options}
        command = [self.program, "build", "-f", RECIPES[part], "-t", name]
        for key, value in arguments.items():
            command += ["--build-arg", f"{key}={value}"]
        if self.program != "docker":
            command += ["--format", "docker", "--pull=never", "--layers=false", *self._lent()]
        label = f"{name}" + (
            f" ({options['TORCH']}{', ' + options['EXTRAS'] if options['EXTRAS'] else ''})" if options else ""
        )
        if self.program != "docker":  # it would stay behind without a name
            self._remove(name)
        typical = 60 if part == "operator" else 420
        run_step(label, [*command, "."], typical_seconds=typical, cwd=PROJECT, env=self._environment)
        OUTPUT.mkdir(parents=True, exist_ok=True)
        archive = OUTPUT / f"cleanrl-{part}.tar"
        archive.unlink(missing_ok=True)
        with step(f"archive of {name}", 30 if part == "operator" else 120):
            self._save(name, archive)
            size = f"{unpacked(archive) / 1e6:,.0f} MB unpacked"
            if part == "operator":  # of gigabytes it would take minutes
                size += f", {compressed(archive) / 1e6:,.0f} MB compressed"
            bill = OUTPUT / f"cleanrl-{part}.cdx.json"
            bill.write_bytes(file_in(archive, "usr/share/cleanrl/sbom.cdx.json"))
        if not keep:
            archive.unlink()
        listed = len(json.loads(bill.read_text())["components"])
        sys.stdout.write(f"{name}: {size}, {listed} distributions in {bill.relative_to(PROJECT)}\n")

    def clean(self, tag: str) -> None:
        """Everything that this command made."""
        names = [*(f"localhost/cleanrl-{part}:{tag}" for part in RECIPES), STAND_IN]
        if self.program == "buildah":  # a killed build leaves its containers
            listed = subprocess.run(["buildah", "containers", "--json"], capture_output=True, text=True, check=True)
            for each in json.loads(listed.stdout or "[]") or []:
                if each.get("imagename") in names:
                    subprocess.run(["buildah", "rm", each["id"]], capture_output=True, check=True)
        for name in names:
            self._remove(name)
        shutil.rmtree(OUTPUT, ignore_errors=True)
        sys.stdout.write("The images and build/images are gone.\n")

    def _remove(self, name: str) -> None:
        if self._has(name):
            self._run(*(["rmi", name] if self.program == "buildah" else ["image", "rm", name]))

    def _has(self, name: str) -> bool:
        command = ["inspect", "--type", "image", name] if self.program == "buildah" else ["image", "inspect", name]
        return subprocess.run([self.program, *command], capture_output=True, check=False).returncode == 0

    def _lent(self) -> list[str]:
        """This machine's certificates (a company's own authority among them) and uv's cache: used, never in the image."""
        lent = []
        if CERTIFICATES.is_file():
            lent += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        cache = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache" / "uv")
        cache.mkdir(parents=True, exist_ok=True)
        return [*lent, "--volume", f"{cache}:/root/.cache/uv"]

    def _save(self, name: str, archive: Path) -> None:
        command = ["push", name, f"docker-archive:{archive}:{name}"]
        if self.program != "buildah":
            command = ["save", "-o", str(archive), name]
        answer = subprocess.run([self.program, *command], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise Refused(f"{name} can't be written to {archive}: {answer.stderr.strip()}")

    def _make_stand_in(self) -> None:
        """Debian's Python with pip, at the size and with the names of python:3.11-slim."""
        install("mmdebstrap")
        tree = OUTPUT / "stand-in.tar"
        tree.parent.mkdir(parents=True, exist_ok=True)
        unwanted = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")]
        names = 'ln -s python3 "$1/usr/bin/python"; rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED'
        run_step(
            f"a stand-in for {BASE} from Debian's packages",
            [
                *["mmdebstrap", "--variant=minbase", "--include=python3,python3-pip,ca-certificates", *unwanted],
                *['--aptopt=APT::Install-Recommends "false"', f"--customize-hook={names}", DEBIAN, str(tree)],
            ],
            typical_seconds=60,
            remedy="is Debian's package registry reachable? Or name a base that you have with --base",
        )
        container = self._run("from", "scratch") if self.program == "buildah" else ""
        if container:
            self._run("add", container, str(tree), "/")
            self._run("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
            self._run("commit", "--rm", container, STAND_IN)
        else:
            self._run("import", str(tree), STAND_IN)
        tree.unlink()

    def _run(self, *arguments: str) -> str:
        answer = subprocess.run([self.program, *arguments], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise Refused(f"{self.program} {arguments[0]}: {answer.stderr.strip()}")
        return answer.stdout.strip()


def unpacked(archive: Path) -> int:
    """Bytes of an image's layers as they lie on a node."""
    with tarfile.open(archive) as image:
        return sum(image.getmember(layer).size for layer in _layers(image))


def compressed(archive: Path) -> int:
    """Bytes of an image's layers gzipped, as a registry keeps them."""
    size = 0
    with tarfile.open(archive) as image:
        for layer in _layers(image):
            packer = zlib.compressobj(wbits=31)
            content = image.extractfile(layer)
            assert content is not None
            while block := content.read(1 << 20):
                size += len(packer.compress(block))
            size += len(packer.flush())
    return size


def file_in(archive: Path, path: str) -> bytes:
    """A file out of an image's archive, from the last layer that has it."""
    with tarfile.open(archive) as image:
        for layer in reversed(_layers(image)):
            content = image.extractfile(layer)
            assert content is not None
            with tarfile.open(fileobj=content, mode="r|*") as tree:
                for each in tree:
                    if each.name.removeprefix("./") == path and (found := tree.extractfile(each)) is not None:
                        return found.read()
    raise Refused(f"{archive} holds no {path}")


def _layers(image: tarfile.TarFile) -> list[str]:
    manifest = image.extractfile("manifest.json")
    assert manifest is not None
    return [str(name) for name in json.load(manifest)[0]["Layers"]]


def install(package: str) -> None:
    """A Debian package, where that is possible; else a sentence."""
    if shutil.which(package):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Refused(f"{package} is missing: install docker, podman or buildah (on Debian as root it is done for you)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    run_step("Debian's package lists", [*apt, "update"], typical_seconds=10, env=environment)
    run_step(package, [*apt, "install", "--no-install-recommends", package], typical_seconds=20, env=environment)


def ask_for_disk(torch: str) -> None:
    """Refuse before a large step rather than in the middle of it."""
    free = shutil.disk_usage(PROJECT).free
    if free < FREE_BYTES[torch]:
        raise Refused(f"{free / 2**30:.0f} GiB are free and the images take {FREE_BYTES[torch] / 2**30:.0f} on the way")


def metadata() -> dict[str, object]:
    """The project's own table."""
    return dict(tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"])


def version() -> str:
    """The project's version, which the chart takes as the images' tag."""
    return str(metadata()["version"])


def known_extras() -> Sequence[str]:
    """The requirement sets."""
    extras = metadata()["optional-dependencies"]
    assert isinstance(extras, dict)
    return [name for name in extras if name not in RECIPES]


def requirement_sets(text: str) -> list[str]:
    """The names in a list of requirement sets, all of them known."""
    names = text.split()
    if wrong := [name for name in names if name not in known_extras()]:
        raise Refused(f"there is no requirement set {wrong[0]!r}: {', '.join(sorted(known_extras()))}")
    return names


def revision() -> str:
    """The commit that is built, marked when the tree differs from it."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
