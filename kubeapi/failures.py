"""From what HTTP and sockets report to the errors that callers know.

Every text is one line that names the server and what failed: these lines end in logs, in Events and in
``gpuclaim status``, where nobody can ask what "Cannot connect to host" meant.
"""

import json
import os
import re
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from kubeapi.errors import ApiError, Unreachable, from_status

_EXCERPT = 200
"""Characters of a body that isn't a Status shown in an error: enough to recognise a proxy's page."""

_USER_INFO = re.compile(r"//[^/\s]*@")
"""Name and password in a URL: a proxy's may hold them."""


def from_response(url: str, status: int, reason_phrase: str, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error in an answer whose status isn't 2xx: a Status object, or whatever a proxy put in its place."""
    retry_after = _seconds(headers.get("Retry-After", ""))
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict) and parsed.get("kind") == "Status":
        return from_status_object(parsed, status=status, retry_after=retry_after)
    excerpt = " ".join(body.decode("utf-8", errors="replace").split())[:_EXCERPT]
    message = f"read the answer of {url}: {reason_phrase or 'an error'} without a Status object"
    return from_status(status, reason_phrase, f"{message}: {excerpt}" if excerpt else message, retry_after=retry_after)


def from_status_object(body: Mapping[str, Any], *, status: int = 0, retry_after: float | None = None) -> ApiError:
    """From a Status object, of an answer or of a watch's ERROR event. Its own code wins over ``status``."""
    code = body.get("code")
    details = body.get("details")
    if retry_after is None and isinstance(details, dict):
        seconds = details.get("retryAfterSeconds")
        retry_after = float(seconds) if isinstance(seconds, int) and seconds > 0 else None
    return from_status(
        code if isinstance(code, int) and code > 0 else status,
        str(body.get("reason") or ""),
        str(body.get("message") or "no message"),
        retry_after=retry_after,
    )


def not_json(url: str, status: int, body: bytes) -> ApiError:
    """A success whose body isn't a JSON object: whatever answered isn't an API server."""
    excerpt = " ".join(body.decode("utf-8", errors="replace").split())[:_EXCERPT]
    return ApiError(status, "NotJson", f"read the answer of {url}: not a JSON object: {excerpt}")


def from_exception(url: str, error: BaseException) -> Unreachable:
    """``url`` is the server's, without path: what couldn't be reached is the server, not the object."""
    return Unreachable(f"reach API server {url}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "no address for this host name"
        case aiohttp.ClientConnectorCertificateError():
            return f"its TLS certificate isn't trusted: {_certificate(error.certificate_error)}"
        case aiohttp.ClientSSLError():
            return f"TLS handshake failed: {error.os_error.strerror or error.os_error}"
        case aiohttp.ClientConnectorError():
            return _os_reason(error.os_error)
        case aiohttp.ConnectionTimeoutError():
            return "no connection within the time limit"
        case TimeoutError():
            return "no answer within the time limit"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection before it answered"
        case aiohttp.ClientPayloadError():
            return "the connection was cut in the middle of an answer"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused: {error.status} {error.message}"
        case aiohttp.ClientResponseError():
            return f"{type(error).__name__}: {error.status} {error.message}"
        case OSError():
            return _os_reason(error)
        case _:
            return f"{type(error).__name__}: {_USER_INFO.sub('//', str(error))}"


def _os_reason(error: OSError) -> str:
    """The plain text of the number: with several addresses asyncio packs all their errors into one."""
    if error.errno:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error) or type(error).__name__


def _certificate(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message or str(error)
    return str(error)


def _seconds(header: str) -> float | None:
    """API servers write seconds; a date, which a proxy may write, is left to the caller's own back-off."""
    return float(header) if header.strip().isdecimal() else None
