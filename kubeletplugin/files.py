"""Reading a file in a folder where others write too: whatever its name hides, the reader never waits.

Opening a FIFO waits for a writer, for ever if need be, and a device may answer never: a thread that does it is lost,
and with it the care that it was taking. So only regular files are read, behind links too.
"""

import errno
import os
import stat
from pathlib import Path


class NotRegularError(OSError):
    """A FIFO, a socket or a device."""


def read_regular(path: Path, most: int = -1) -> bytes:
    """The file's first ``most`` bytes (negative: all). Raises NotRegularError, and OSError as open does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularError(errno.EINVAL, "it isn't a regular file; remove it", str(path))
        return file.read(most)
