"""Trouble that comes again at every try, told once: who reads the log of a night without API server should find what
happened and when it ended, not a line per try and node."""

import logging

from kubeapi.errors import ApiError, explain

_MOST_TEXTS = 16
"""A server (or a proxy) may put a number of its own into each answer; more texts than these are one trouble."""


class Complaints:
    """A warning for each text while a trouble lasts (again: debug), and a line when it is over."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """``what`` is being done, verb first."""
        self._log = log
        self._what = what
        self._told: set[str] = set()

    def failed(self, error: Exception, retry_in: float) -> None:
        """``retry_in`` in seconds. What is no ApiError nobody expected: it is told with where it comes from."""
        text = explain(error)
        level = logging.WARNING
        if text in self._told or len(self._told) >= _MOST_TEXTS:
            level = logging.DEBUG
        else:
            self._told.add(text)
        unexpected = None if isinstance(error, ApiError) else error
        self._log.log(level, "%s: %s; again in %.1f s", self._what, text, retry_in, exc_info=unexpected)

    def healed(self) -> None:
        """Every success may call it."""
        if self._told:
            self._told.clear()
            self._log.info("%s: works again", self._what)
