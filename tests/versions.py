"""Other versions of the node agent, for upgrades and roll-backs: ``python -m tests.versions WHAT... -- FLAGS``.

Each WHAT is one way in which the version differs from this one:

- ``dies-at=POINT``: it is killed when it reaches that crash point; ``blocks-at=POINT``: its event loop stands still
- ``schema=N``: it makes a ledger of schema N, with a table and a column more; ``min-writer=N``: that only N may write
- ``cant-activate``: its work can't begin
- ``wont-leave``: it ignores SIGTERM, and hangs when it is asked to yield
"""

import asyncio
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence

from kubeletplugin import crashpoints
from kubeletplugin.app import main
from kubeletplugin.app.active import ActiveNode
from kubeletplugin.app.agent import Agent
from kubeletplugin.errors import RecoverableError
from kubeletplugin.ledger import schema

NOVELTIES = "CREATE TABLE IF NOT EXISTS novelties (name TEXT PRIMARY KEY) WITHOUT ROWID"
NOVELTY = "ALTER TABLE claims ADD COLUMN novelty TEXT NOT NULL DEFAULT 'x'"


def dies_at(point: str) -> None:
    _at(point, lambda: os.kill(os.getpid(), signal.SIGKILL))


def blocks_at(point: str) -> None:
    _at(point, lambda: time.sleep(3600))


def _at(point: str, deed: Callable[[], None]) -> None:
    if point not in crashpoints.POINTS:
        raise SystemExit(f"no crash point {point}")

    def hook(reached: str) -> None:
        if reached == point:
            deed()

    crashpoints.hook = hook


def has_schema(number: str) -> None:
    prepare = schema.prepare_for_writing

    def prepare_and_grow(connection: sqlite3.Connection, path: str, boot_id: str, epoch: int = 0) -> bool:
        is_new = prepare(connection, path, boot_id, epoch)
        connection.execute(NOVELTIES)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(claims)")]
        if "novelty" not in columns:
            connection.execute(NOVELTY)
        return is_new

    schema.SCHEMA = int(number)
    schema.prepare_for_writing = prepare_and_grow


def has_min_writer(number: str) -> None:
    schema.MIN_WRITER = int(number)


def cant_activate(_: str) -> None:
    async def activate(self: ActiveNode, epoch: int) -> None:
        raise RecoverableError("open the ledger: no such luck")

    ActiveNode.activate = activate  # type: ignore[method-assign]


def wont_leave(_: str) -> None:
    async def deactivate(self: ActiveNode) -> None:
        await asyncio.Event().wait()

    def stop(self: Agent) -> None:
        return

    ActiveNode.deactivate = deactivate  # type: ignore[method-assign]
    Agent.stop = stop  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[str], None]] = {
    "dies-at": dies_at,
    "blocks-at": blocks_at,
    "schema": has_schema,
    "min-writer": has_min_writer,
    "cant-activate": cant_activate,
    "wont-leave": wont_leave,
}


def run(arguments: Sequence[str]) -> int:
    border = arguments.index("--")
    for change in arguments[:border]:
        name, _, value = change.partition("=")
        CHANGES[name](value)
    return main.main(arguments[border + 1 :])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
