"""Where the API server is and who we are to it, as something that may change while we run.

A bound service account token is replaced on disk about every hour, the CA now and then; a token that was read once
at the start ends in 401 for good. So the transport asks for the connection before every request, and again after a
401.
"""

import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kubeapi.errors import ConfigError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_AFTER = 60.0
"""Seconds between two looks at the token file. The kubelet replaces a token at 80 % of its life, which is 10 minutes
at least."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One way to reach one API server, fixed for the length of a request."""

    url: str
    """``scheme://host[:port][/prefix]`` without a trailing slash."""
    authorization: str = field(default="", repr=False)
    """Value of the Authorization header; empty where a client certificate or nothing speaks for us."""
    tls: ssl.SSLContext | None = None
    server_hostname: str = ""
    proxy: str = field(default="", repr=False)
    """May hold a password, as ``authorization`` holds a token, so that neither is shown."""


class ConnectionSource(Protocol):
    """Hands out connections. What is wrong at the start shows in the constructor, so ``current`` never fails."""

    async def current(self) -> Connection: ...

    async def renew(self, rejected: Connection) -> Connection:
        """After a 401: fresh credentials, or ``rejected`` itself when there are no others. Raises ConfigError."""


class FixedConnection:
    """A connection that never changes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def current(self) -> Connection:
        return self._connection

    async def renew(self, rejected: Connection) -> Connection:
        return self._connection


class ServiceAccount:
    """The pod's own service account: address from the environment, token and CA from its mounted folder."""

    def __init__(
        self,
        *,
        directory: Path = SERVICE_ACCOUNT_DIR,
        environ: Mapping[str, str] = os.environ,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError when a part is missing, so that a wrong mount shows at the start."""
        self._directory = directory
        self._url = _service_url(environ)
        self._monotonic = monotonic
        self._ca = ""
        self._context: ssl.SSLContext | None = None
        self._connection = self._read()
        self._read_at = monotonic()

    async def current(self) -> Connection:
        if self._monotonic() - self._read_at >= REREAD_AFTER:
            self._reread()
        return self._connection

    async def renew(self, rejected: Connection) -> Connection:
        if rejected is self._connection:
            self._reread()
        return self._connection

    def _reread(self) -> None:
        """Keeps what it had when the files can't be read now: the kubelet may be replacing them."""
        self._read_at = self._monotonic()
        try:
            self._connection = self._read()
        except ConfigError:
            return

    def _read(self) -> Connection:
        token = _read_text(self._directory / "token").strip()
        ca = _read_text(self._directory / "ca.crt")
        if ca != self._ca or self._context is None:
            self._context, self._ca = tls_context(cadata=ca, origin=str(self._directory / "ca.crt")), ca
        return Connection(self._url, f"Bearer {token}", self._context)


def in_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a pod of a cluster, by the variables that the kubelet sets."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and bool(environ.get("KUBERNETES_SERVICE_PORT"))


def tls_context(
    *, cadata: str | None = None, cafile: str | None = None, verify: bool = True, origin: str = ""
) -> ssl.SSLContext:
    """Raises ConfigError naming ``origin`` when the CA isn't PEM."""
    try:
        context = ssl.create_default_context(cadata=cadata, cafile=cafile)
    except (ssl.SSLError, OSError, ValueError) as e:
        raise ConfigError(f"read the CA of the API server from {origin or cafile}: {e}") from e
    # Python 3.13 turned this on; it refuses CAs that clusters have had for years and that kubectl accepts.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _service_url(environ: Mapping[str, str]) -> str:
    if not in_cluster(environ):
        raise ConfigError("find the API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT aren't set")
    host = environ["KUBERNETES_SERVICE_HOST"]
    if ":" in host:
        host = f"[{host}]"
    return f"https://{host}:{environ['KUBERNETES_SERVICE_PORT']}"


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise ConfigError(f"read {path}: {reason}; is the service account token mounted?") from e
    if not text.strip():
        raise ConfigError(f"read {path}: the file is empty")
    return text
