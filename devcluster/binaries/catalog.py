"""The programs that a local cluster is made of, and where each of them comes from.

A program's version is the one that its Go module requires: `modules/<module>/go.mod` is the only place that names it.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from devcluster.binaries.errors import BinaryError

MODULES = Path(__file__).resolve().parent.parent / "modules"
OWN_VERSION = "v1"
"""Version of a program that has no upstream to name one; its build inputs tell its editions apart."""

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_VERSION = re.compile(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?")


@dataclass(frozen=True)
class Download:
    """Where a project publishes a program. `{version}`, `{bare}` (without the v), `{os}` and `{arch}` are filled in."""

    url: str
    checksums: str
    """Text with the SHA-256 of the file: alone, or in the form of sha256sum."""
    member: str = ""
    """Path of the program inside the archive; empty when the file is the program itself."""


@dataclass(frozen=True)
class Program:
    """One program. `package` is what `go build` is given inside `modules/<module>`."""

    name: str
    module: str
    package: str = "."
    requirement: str = ""
    """Go module whose required version is this program's version; empty for programs of our own."""
    version_arguments: tuple[str, ...] = ()
    """How to ask the program for its version; empty when it can't tell."""
    same_parts: int = 2
    """How many leading parts of the version another copy of the program must share to be as good."""
    stamps: tuple[str, ...] = ()
    """Go variables that the linker sets to carry the version into the program; without them it reports v0.0.0."""
    kubernetes_library: str = ""
    """Go module whose version tells the program's `{kubernetes_minor}`: k8s.io/client-go v0.36.3 is Kubernetes 1.36."""
    download: Download | None = None
    typical_seconds: float = 60.0
    """About how long its module takes to build on two cores, until this machine's own time is known."""
    megabytes: int = 600
    """Free disk that a cold build of its module asks for, the compiler's cache and the sources included."""

    @property
    def folder(self) -> Path:
        """The Go module that pins everything the program is built from."""
        return MODULES / self.module

    @property
    def version(self) -> str:
        """The pinned version."""
        return required_version(self.folder, self.requirement) if self.requirement else OWN_VERSION

    def linker_flags(self) -> str:
        """Flags for Go's linker: without symbols, and with the version where the program asks the linker for it."""
        major, minor, *_ = [*self.version.removeprefix("v").split("."), "0"]
        words = {"version": self.version, "major": major, "minor": minor}
        if self.kubernetes_library:
            words["kubernetes_minor"] = required_version(self.folder, self.kubernetes_library).split(".")[1]
        stamps = [stamp.format(**words) for stamp in self.stamps]
        return " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in stamps)])

    def inputs(self) -> str:
        """Digest of what the program is built from; another digest means that a cached build is out of date."""
        digest = hashlib.sha256(f"{self.package}\0{self.linker_flags()}\0".encode())
        for path in sorted(self.folder.iterdir()):
            digest.update(f"{path.name}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


def _kubernetes(name: str) -> Program:
    site = "https://dl.k8s.io/release/{version}/bin/{os}/{arch}/" + name
    return Program(
        name=name,
        module="kubernetes",
        package=f"k8s.io/kubernetes/cmd/{name}",
        requirement="k8s.io/kubernetes",
        version_arguments=("version", "--client") if name == "kubectl" else ("--version",),
        stamps=(
            "k8s.io/component-base/version.gitVersion={version}",
            "k8s.io/component-base/version.gitMajor={major}",
            "k8s.io/component-base/version.gitMinor={minor}",
        ),
        download=Download(url=site, checksums=f"{site}.sha256"),
        typical_seconds=420,
        megabytes=7000,
    )


_ETCD = "https://github.com/etcd-io/etcd/releases/download/{version}/"
_COREDNS = "https://github.com/coredns/coredns/releases/download/{version}/coredns_{bare}_{os}_{arch}.tgz"
_HELM = "https://get.helm.sh/helm-{version}-{os}-{arch}.tar.gz"

PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        *map(
            _kubernetes,
            ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
        ),
        Program(
            name="etcd",
            module="etcd",
            package="go.etcd.io/etcd/server/v3",
            requirement="go.etcd.io/etcd/server/v3",
            version_arguments=("--version",),
            download=Download(
                url=_ETCD + "etcd-{version}-{os}-{arch}.tar.gz",
                checksums=_ETCD + "SHA256SUMS",
                member="etcd-{version}-{os}-{arch}/etcd",
            ),
            typical_seconds=45,
            megabytes=1200,
        ),
        Program(
            name="coredns",
            module="coredns",
            requirement="github.com/coredns/coredns",
            version_arguments=("-version",),
            same_parts=1,
            download=Download(url=_COREDNS, checksums=f"{_COREDNS}.sha256", member="coredns"),
            typical_seconds=75,
            megabytes=1500,
        ),
        Program(
            name="kwok",
            module="kwok",
            package="sigs.k8s.io/kwok/cmd/kwok",
            requirement="sigs.k8s.io/kwok",
            version_arguments=("--version",),
            typical_seconds=90,
            megabytes=2000,
        ),
        Program(
            name="helm",
            module="helm",
            package="helm.sh/helm/v3/cmd/helm",
            requirement="helm.sh/helm/v3",
            version_arguments=("version", "--short"),
            same_parts=1,
            stamps=(
                "helm.sh/helm/v3/internal/version.version={version}",
                # The Kubernetes that `helm template` and `helm lint` assume without a cluster; 1.20 if nobody says.
                "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
                "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={kubernetes_minor}",
                "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1",
                "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor={kubernetes_minor}",
            ),
            kubernetes_library="k8s.io/client-go",
            download=Download(url=_HELM, checksums=f"{_HELM}.sha256sum", member="{os}-{arch}/helm"),
            typical_seconds=150,
            megabytes=2500,
        ),
        Program(name="kube-network-policies", module="netpol", requirement="sigs.k8s.io/kube-network-policies"),
        Program(name="pause", module="pause", typical_seconds=15, megabytes=300),
    )
}


def find(name: str) -> Program:
    """The program of that name."""
    try:
        return PROGRAMS[name]
    except KeyError:
        raise BinaryError(f"devcluster knows no program {name!r}; it knows {', '.join(PROGRAMS)}") from None


@functools.cache
def required_version(folder: Path, requirement: str) -> str:
    """The version of `requirement` in the folder's go.mod."""
    match = re.search(
        rf"^(?:require)?\s+{re.escape(requirement)}\s+(v\S+)", (folder / "go.mod").read_text(), re.MULTILINE
    )
    if match is None:
        raise BinaryError(f"{folder.name}/go.mod does not require {requirement}; restore it from the repository")
    return match[1]


def check_version(text: str, example: str) -> str:
    """`text` when it names a release in the way the example does."""
    if not _VERSION.fullmatch(text):
        raise BinaryError(f"{text!r} is not a version; write it as in {example}")
    return text


def system() -> str:
    """This machine's operating system, as Go names it."""
    return platform.system().lower()


def architecture() -> str:
    """This machine's architecture, as Go names it."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)
