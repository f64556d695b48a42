"""The gateway's own authority and certificate: made here, kept in a Secret, renewed before they end.

The authority lives ten years and travels to every pod; the server's certificate lives ninety days and is made anew in memory at
each start, so that no private key but the authority's is stored.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cleanrl_operator.kube import Kube, KubeError

SECRET_NAME = "cleanrl-gateway"  # noqa: S105 - a Secret's name
AUTHORITY_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=90)


@dataclass(frozen=True)
class Material:
    """What the gateway needs to serve: its authority and the key of its session tokens."""

    authority_pem: str
    authority_key_pem: str
    session_key: bytes


def make_material(now: datetime | None = None) -> Material:
    """A fresh authority and session key."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cleanrl-gateway authority")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Material(_pem(certificate), _key_pem(key), secrets.token_bytes(32))


def make_server_certificate(material: Material, names: list[str], now: datetime | None = None) -> tuple[bytes, bytes]:
    """(key, certificate) as PEM for a server of these DNS names."""
    now = now or datetime.now(UTC)
    authority = x509.load_pem_x509_certificate(material.authority_pem.encode())
    authority_key = serialization.load_pem_private_key(material.authority_key_pem.encode(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + SERVER_LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    return _key_pem(key).encode(), _pem(certificate).encode()


async def load_or_make(kube: Kube, namespace: str) -> Material:
    """The material in the installation's Secret; the first one to come makes it."""
    path = f"api/v1/namespaces/{namespace}/secrets"
    stored = await kube.get(f"{path}/{SECRET_NAME}")
    if stored is None:
        material = make_material()
        data = {
            "ca.crt": material.authority_pem.encode(),
            "ca.key": material.authority_key_pem.encode(),
            "session.key": material.session_key,
        }
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET_NAME, "labels": {"app.kubernetes.io/managed-by": "cleanrl-operator"}},
            "type": "Opaque",
            "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
        }
        try:
            await kube.create(path, body)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
        stored = await kube.get(f"{path}/{SECRET_NAME}")
        assert stored is not None
    data = {name: base64.b64decode(value) for name, value in stored["data"].items()}
    return Material(data["ca.crt"].decode(), data["ca.key"].decode(), data["session.key"])


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
