"""Trouble that comes again at every try, told once: who reads the log of a night with a full disk should find what
happened and when it ended, not a line per try (for the API server's: kubeapi.complaints)."""

import contextlib
import logging
from collections.abc import Collection, Iterator

from kubeletplugin.errors import AgentError, NotActiveError


class Troubles:
    """A line for each text while a trouble lasts (again: debug, also of other work that meets the same), and a line
    when it is over."""

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self._log = log
        self._level = level
        self._told: dict[str, set[str]] = {}

    def failed(self, what: str, error: Exception) -> None:
        """``what`` was being done, verb first. What is no AgentError nobody expected: it is told with its origin."""
        told = frozenset[str]().union(*self._told.values())
        text = f"{type(error).__name__}: {error}"
        unexpected = None if isinstance(error, AgentError) else error
        self._log.log(
            logging.DEBUG if text in told else self._level,
            "%s: %s",
            what,
            error if unexpected is None else "an error that nobody foresaw",
            exc_info=unexpected,
        )
        if text not in told:
            self._told.setdefault(what, set()).add(text)

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Any error of the block is told and ends here, so that one thing's trouble is nobody else's; only
        NotActiveError, with which all work ends, goes on."""
        try:
            yield
        except NotActiveError:
            raise
        except Exception as error:
            self.failed(what, error)
        else:
            self.over(what)

    def forget(self, what: str) -> None:
        """It has worked meanwhile, so that the next failure is news."""
        self._told.pop(what, None)

    def only(self, whats: Collection[str]) -> None:
        """Nothing else will be done again: what has failed with it must mute nobody for ever."""
        for what in self._told.keys() - set(whats):
            self._told.pop(what)

    def over(self, what: str) -> None:
        """Every success may call it."""
        if self._told.pop(what, None):
            self._log.info("%s: works again", what)
