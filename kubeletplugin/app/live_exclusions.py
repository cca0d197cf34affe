"""The operator's exclusions, read anew when the config file changes: taking a GPU out of service needs no restart.

Asked at every look at the hardware. A file that became bad is reported once and changes nothing. What else changed in
it takes effect at the next start, and is said.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from kubeletplugin.app.settings import Settings
from kubeletplugin.errors import FatalError
from kubeletplugin.inventory.exclusion import Exclusion

log = logging.getLogger(__name__)


class LiveExclusions:
    """``reload`` reads the settings anew; ``path`` is the config file, None when there is none."""

    def __init__(self, settings: Settings, path: Path | None, reload: Callable[[], Settings]) -> None:
        self._settings = settings
        self._path = path
        self._reload = reload
        self._stamp = self._take_stamp()

    def __call__(self) -> Sequence[Exclusion]:
        stamp = self._take_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()
        return [Exclusion(entry.gpu, entry.reason) for entry in self._settings.exclude]

    def _read(self) -> None:
        try:
            fresh = self._reload()
        except FatalError as error:
            log.error("the config file has changed and is bad, going on with what was read before: %s", error)
            return
        later = [
            field.alias or name
            for name, field in Settings.model_fields.items()
            if name != "exclude" and getattr(fresh, name) != getattr(self._settings, name)
        ]
        if later:
            log.warning("the config file has changed: %s takes effect at the next start", ", ".join(later))
        self._settings = self._settings.model_copy(update={"exclude": fresh.exclude})
        log.info(
            "the config file has changed: %d entries of exclude hold; a Node Event tells of one that matches no GPU",
            len(fresh.exclude),
        )

    def _take_stamp(self) -> tuple[int, int] | None:
        """A ConfigMap's file changes by a link to another folder, so the file behind the links is looked at."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
