"""Keys and certificates of one test cluster: a certificate authority, certificates for servers and clients, and the key that signs
service-account tokens.

Elliptic-curve keys are used because they are fast to generate and a test cluster is short-lived.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFE = timedelta(days=365)
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Authority:
    """The certificate authority that signs the certificates of the cluster's servers and clients."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, folder: Path) -> Authority:
        """Create a new authority and write its certificate to ca.crt in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("ratchet-rig")
        made = _certificate(name, name, key.public_key(), key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(_SIGNS, critical=True)
        certificate = made.sign(key, hashes.SHA256())
        (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder, key, certificate)

    def issue(self, file: str, name: str, group: str = "", addresses: tuple[str, ...] = ()) -> None:
        """Write `file`.crt and `file`.key; with `addresses`, the certificate is also valid for a server at these IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(_name(name, group), self.certificate.subject, key.public_key(), self.key.public_key())
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(a)) for a in addresses] + [x509.DNSName("localhost")]
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = made.sign(self.key, hashes.SHA256())
        (self.folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(self.folder / f"{file}.key", key)


def _name(common: str, group: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if group:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """Return a certificate with the key identifiers of RFC 5280, which Python demands from 3.13 on."""
    now = datetime.now(UTC)
    blank = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    blank = blank.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    blank = blank.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    return blank.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1)).not_valid_after(now + LIFE)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key as PEM, readable only by its owner."""
    form, no_password = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, no_password))


def write_signer(folder: Path) -> None:
    """Write the key pair for service-account tokens: sa.key signs them, sa.pub verifies them."""
    key = ec.generate_private_key(ec.SECP256R1())
    write_key(folder / "sa.key", key)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.pub").write_bytes(public)


def write_kubeconfig(path: Path, folder: Path, server: str) -> None:
    """Write a kubeconfig for the administrator, with all certificates and keys inside the file."""

    def inline(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    user = {"client-certificate-data": inline("admin.crt"), "client-key-data": inline("admin.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "rig", "cluster": {"server": server, "certificate-authority-data": inline("ca.crt")}}],
        "users": [{"name": "admin", "user": user}],
        "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "admin"}}],
        "current-context": "rig",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
