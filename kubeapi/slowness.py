"""Requests that get no answer for long are told of before their time limit: until then nothing else would say why an
agent stands still. Once while it lasts, and its end."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator


class Slowness:
    def __init__(self, log: logging.Logger, seconds: float) -> None:
        self._log = log
        self._seconds = seconds
        self._told = False

    @contextlib.contextmanager
    def watched(self, url: str, method: str, path: str) -> Iterator[None]:
        """``url`` is the server's. Leaving in good order means that it has answered."""
        timer = asyncio.get_running_loop().call_later(self._seconds, self._slow, url, method, path)
        try:
            yield
            if self._told:
                self._told = False
                self._log.info("API server %s answers again", url)
        finally:
            timer.cancel()

    def _slow(self, url: str, method: str, path: str) -> None:
        if not self._told:
            self._told = True
            self._log.warning("API server %s hasn't answered %s %s for %g s; waiting", url, method, path, self._seconds)
