"""The gateway's own authorities and certificate: made here, kept in a Secret, renewed before they end.

There are always two authorities, the current one, which signs, and the next, which ends ten years after it: both travel to
every pod, so that the next may take over while pods from before are still running. The server's certificate lives ninety days
and is made in memory, so that no private key but the authorities' is stored.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cleanrl_operator.kube import Kube, KubeError, Object

SECRET_NAME = "cleanrl-gateway"  # noqa: S105 - a Secret's name
AUTHORITY_LIFE = timedelta(days=3650)
AUTHORITY_CHANGE = timedelta(days=365)
"""The next authority takes over when the current one has less left: no run lasts longer than that."""
SERVER_LIFE = timedelta(days=90)
SERVER_CHANGE = timedelta(days=30)
"""The server's certificate is renewed when it has less left."""
SKEW = timedelta(days=1)
"""Certificates count from so long before they were made: a clock that was an hour ahead then kept every worker out."""


@dataclass(frozen=True)
class Authority:
    """One authority, as PEM."""

    certificate: str
    key: str

    @property
    def ends(self) -> datetime:
        """When its certificate ends."""
        return x509.load_pem_x509_certificate(self.certificate.encode()).not_valid_after_utc


@dataclass(frozen=True)
class Material:
    """What the gateway needs to serve: its authorities and the key of its session tokens."""

    current: Authority
    following: Authority
    session_key: bytes

    @property
    def authorities(self) -> tuple[str, ...]:
        """What every pod gets to trust."""
        return self.current.certificate, self.following.certificate


@dataclass(frozen=True)
class ServerCertificate:
    """Key and certificate as PEM."""

    key: bytes
    certificate: bytes
    ends: datetime
    signer: Authority = field(repr=False)

    def serves(self, signer: Authority, now: datetime) -> bool:
        """Whether it is good for a while yet, and signed by the authority that is the current one: whoever comes after a
        change of authorities does not know the one before."""
        return self.signer == signer and self.ends - now >= SERVER_CHANGE


def make_material(now: datetime) -> Material:
    """Fresh authorities and session key."""
    current = make_authority(now, now + AUTHORITY_LIFE)
    return Material(current, make_authority(now, current.ends + AUTHORITY_LIFE), secrets.token_bytes(32))


def rotated(material: Material, now: datetime) -> Material:
    """The same, or one step further when the current authority comes to its end."""
    if material.current.ends - now > AUTHORITY_CHANGE:
        return material
    current = material.following
    return Material(current, make_authority(now, current.ends + AUTHORITY_LIFE), material.session_key)


def make_authority(now: datetime, ends: datetime) -> Authority:
    """A fresh authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cleanrl-gateway authority")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(_pem(certificate), _key_pem(key))


def make_server_certificate(signer: Authority, names: list[str], now: datetime) -> ServerCertificate:
    """For a server of these DNS names or addresses."""
    authority = x509.load_pem_x509_certificate(signer.certificate.encode())
    authority_key = serialization.load_pem_private_key(signer.key.encode(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + SERVER_LIFE)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    return ServerCertificate(_key_pem(key).encode(), _pem(certificate).encode(), now + SERVER_LIFE, signer)


async def load_or_make(kube: Kube, namespace: str, now: datetime, held: Material | None = None) -> Material:
    """The material in the installation's Secret; the first one to come makes it, and rotation is written back.

    Where it is gone, what this process `held` is put there again: running workers trust nothing else. Raises KubeError.
    """
    path = f"api/v1/namespaces/{namespace}/secrets"
    stored = await kube.get(f"{path}/{SECRET_NAME}")
    if stored is None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET_NAME, "labels": {"app.kubernetes.io/managed-by": "cleanrl-operator"}},
            "type": "Opaque",
            "data": _pack(held or make_material(now)),
        }
        try:
            stored = await kube.keep("POST", path, body)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            stored = await kube.get(f"{path}/{SECRET_NAME}") or {}
    material = _unpack(stored)
    fresh = rotated(material, now)
    if fresh != material:
        await kube.keep("PUT", f"{path}/{SECRET_NAME}", {**stored, "data": _pack(fresh)})
    return fresh


def _pack(material: Material) -> dict[str, str]:
    data = {
        "ca.crt": material.current.certificate.encode(),
        "ca.key": material.current.key.encode(),
        "next.crt": material.following.certificate.encode(),
        "next.key": material.following.key.encode(),
        "session.key": material.session_key,
    }
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


def _unpack(secret: Object) -> Material:
    try:
        data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
        for name in ("ca", "next"):
            x509.load_pem_x509_certificate(data[f"{name}.crt"])
            serialization.load_pem_private_key(data[f"{name}.key"], None)
        current = Authority(data["ca.crt"].decode(), data["ca.key"].decode())
        following = Authority(data["next.crt"].decode(), data["next.key"].decode())
        return Material(current, following, data["session.key"])
    except (KeyError, AttributeError, TypeError, ValueError):
        text = f"Secret {SECRET_NAME} does not hold the gateway's keys: delete it, and the operator makes new ones at its start"
        raise KubeError(422, "Invalid", text) from None


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
