"""`gpuclaim kubeletplugin` whose wall clock jumps: by the days in the file that JUMP names, whenever it is asked."""

import datetime
import os
import sys
from pathlib import Path

from kubeletplugin.app.main import main
from kubeletplugin.clock import SystemClock

_days = Path(os.environ["JUMP"])


def _now(self: SystemClock) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=float(_days.read_text()))


SystemClock.now = _now  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
