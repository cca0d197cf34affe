"""What can go wrong when talking to the API server, one class per thing that a caller treats differently."""


class ApiError(Exception):
    """An answer other than success. ``status`` is the HTTP code (0 when none came), ``reason`` the Status reason."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after: float | None = None) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        super().__init__(f"{message} ({status} {reason})" if status else message)


class Unreachable(ApiError):
    """No answer: connection refused, reset, timed out, TLS or DNS trouble."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class Unauthorized(ApiError):
    """401: the token is expired or unknown."""


class Forbidden(ApiError):
    """403: RBAC or admission refuses."""


class NotFound(ApiError):
    """404: no such object, or no such resource on this server."""


class Conflict(ApiError):
    """409: the object changed meanwhile, or a precondition failed."""


class AlreadyExists(Conflict):
    """409 AlreadyExists on create."""


class Gone(ApiError):
    """410: the resource version or continue token is too old; list again."""


class Invalid(ApiError):
    """422: validation or an admission policy refused; doesn't heal by trying again."""


class TooManyRequests(ApiError):
    """429; see ``retry_after`` (seconds)."""


class ServerError(ApiError):
    """5xx."""


class ConfigError(Exception):
    """No usable address or credentials for an API server. Not an ApiError: no request was made, and trying again
    without a change of file, flag or environment doesn't help."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def from_status(status: int, reason: str, message: str, *, retry_after: float | None = None) -> ApiError:
    """The class for an HTTP status and a Status reason."""
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    if reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(status, reason, message, retry_after=retry_after)


def explain(error: Exception) -> str:
    """Its text, with what to do where the server's words don't say."""
    match error:
        case Forbidden():
            return f"{error}; apply deploy/manifests, and check the ClusterRole of this user and its binding"
        case Unauthorized():
            return f"{error}; check the service account (or the kubeconfig) whose credentials are used"
        case _:
            return str(error)
