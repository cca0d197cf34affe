"""What can go wrong with the ledger's file, one class per thing that a caller treats differently."""

from kubeletplugin.errors import FatalError, RecoverableError


class LedgerTooNewError(FatalError):
    """A newer version wrote this file and says that ours must not write it."""


class LedgerDamagedError(RecoverableError):
    """The file isn't a ledger or is corrupt: set it aside (``files.set_aside``) and rebuild, never crash in a loop."""


class LedgerBusyError(RecoverableError):
    """Another process keeps the write lock. After a take-over that is a stopped former holder: it must be ended."""


class LedgerIOError(RecoverableError):
    """Disk full, read-only or failing: nothing was committed."""
