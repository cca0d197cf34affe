"""What every side effect asks first: whether this instance is still the active one (implemented by lease.Lease)."""

from contextlib import AbstractContextManager
from typing import Protocol


class Fence(Protocol):
    """Proof, at the moment of a side effect, that the activation in which its work began still holds (docs/protocol,
    R_LOCK).

    Every rename and unlink in the CDI folder, ledger commit and answer happens inside ``held()``. It takes a shared
    flock on the lease file without waiting and reads the epoch inside it; NotActiveError when the lock isn't free at
    once or the epoch isn't the fence's. Nothing that can hang (NVML, API, an await) may be done inside. Callable from
    any thread.
    """

    def held(self) -> AbstractContextManager[None]: ...
