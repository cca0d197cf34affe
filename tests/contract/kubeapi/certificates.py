"""A CA, and a server certificate for 127.0.0.1 by it, made on the spot by openssl."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    ca: Path
    server: ssl.SSLContext


def make_certificates(folder: Path, *, name: str = "IP:127.0.0.1") -> Certificates:
    ca, key = folder / "ca.crt", folder / "ca.key"
    leaf, leaf_key, request = folder / "server.crt", folder / "server.key", folder / "server.csr"
    extensions = folder / "extensions"
    extensions.write_text(f"subjectAltName={name}\n")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl("req", "-x509", *curve, "-keyout", key, "-out", ca, "-days", "2", "-subj", "/CN=test CA")
    _openssl("req", *curve, "-keyout", leaf_key, "-out", request, "-subj", "/CN=server")
    signed = ("-CA", ca, "-CAkey", key, "-CAcreateserial", "-days", "2", "-extfile", extensions)
    _openssl("x509", "-req", "-in", request, *signed, "-out", leaf)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf, leaf_key)
    return Certificates(ca, context)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
