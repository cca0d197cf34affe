"""Things that go wrong with an API server, switched on by a test or a person, and a count of what was asked of it."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from gpuclaim.demo.apiserver_errors import StatusError

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class Fault:
    """One misbehaviour towards requests of a verb and a resource (each empty: any)."""

    times: int
    verb: str = ""
    resource: str = ""
    error: StatusError | None = None
    retry_after: int = 0
    raw_body: bytes | None = None
    """Sent in place of a Status, as by a proxy in between."""
    delay: float = 0.0
    """Seconds before the request is served."""
    hang: bool = False
    drop: bool = False
    """Close the connection without an answer."""
    done: bool = False
    """With ``drop``: serve the request first, so that only the answer is lost."""

    def concerns(self, verb: str, resource: str) -> bool:
        return self.times > 0 and self.verb in ("", verb) and self.resource in ("", resource)


@dataclass(slots=True)
class Faults:
    """Verbs: get, list, watch, create, update, patch, apply, delete, deletecollection. Resources: the plural."""

    active: list[Fault] = field(default_factory=list)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(verb, plural) to the number of requests, refused ones included."""
    tokens: set[str] | None = None
    """Bearer tokens that are accepted; None accepts everybody."""
    activity: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a request comes in or a watch opens or ends."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(
        self,
        code: int,
        *,
        times: int = 1,
        verb: str = "",
        resource: str = "",
        message: str = "",
        retry_after: int = 0,
        raw_body: bytes | None = None,
    ) -> Fault:
        """The next ``times`` requests are answered with ``code``."""
        text = message or f"injected fault {code}"
        error = StatusError(code, _REASONS.get(code, "Unknown"), text)
        if retry_after:
            error.details["retryAfterSeconds"] = retry_after
        return self._add(Fault(times, verb, resource, error, retry_after, raw_body))

    def hang(self, *, times: int = 1, verb: str = "", resource: str = "") -> Fault:
        """The next ``times`` requests get no answer until ``release``."""
        return self._add(Fault(times, verb, resource, hang=True))

    def delay(self, seconds: float, *, times: int = 1, verb: str = "", resource: str = "") -> Fault:
        return self._add(Fault(times, verb, resource, delay=seconds))

    def drop(self, *, times: int = 1, verb: str = "", resource: str = "", done: bool = False) -> Fault:
        """The next ``times`` connections are closed without an answer; with ``done`` after the request was served."""
        return self._add(Fault(times, verb, resource, drop=True, done=done))

    def release(self) -> None:
        """Ends all faults; hanging requests are served now."""
        self.active.clear()
        self._released.set()
        self._released = asyncio.Event()

    def take(self, verb: str, resource: str) -> Fault | None:
        """Counts a request and uses up one turn of the fault that concerns it."""
        self.requests[verb, resource] += 1
        self.activity.set()
        for fault in self.active:
            if fault.concerns(verb, resource):
                fault.times -= 1
                return fault
        return None

    async def until_released(self) -> None:
        await self._released.wait()

    def _add(self, fault: Fault) -> Fault:
        self.active.append(fault)
        return fault
