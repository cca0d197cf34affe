"""The ledger as the active instance uses it: an async API over one connection in one thread of its own.

SQLite blocks (a commit is an fsync), so all of it runs in that thread, in the order in which it was asked for: when a
write's caller is cancelled, a later read sees whether it happened, and it won't happen afterwards. Every write is one
BEGIN IMMEDIATE transaction, from begin to commit under the lease's fence, without any await or outside call in it:
who lost the lease, or wakes after having been stopped, gets NotActiveError and has changed nothing (docs/protocol,
R_LOCK).
"""

import asyncio
import datetime
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from kubeletplugin import crashpoints
from kubeletplugin.errors import NotActiveError
from kubeletplugin.fence import Fence
from kubeletplugin.ledger import files, queries, rescue, schema
from kubeletplugin.ledger.errors import LedgerDamagedError
from kubeletplugin.ledger.model import ClaimRecord, Drain, HeldDevice, Hold, Intent, Snapshot

P = ParamSpec("P")
T = TypeVar("T")

_kept: set[sqlite3.Connection] = set()
"""All connections that weren't closed under the lease, so that no garbage collection closes one without."""


class LedgerObserver(Protocol):
    """Must return at once and not raise."""

    def ledger_rescued(self, note: str) -> None:
        """The file was written anew; told in the ledger's thread."""

    def ledger_damaged(self, problem: str) -> None:
        """Nothing of this Ledger can be relied on any more."""


class Ledger:
    """Made by ``open``. Methods raise NotActiveError, LedgerBusyError, LedgerIOError, LedgerDamagedError; after the
    last of these only another ``open`` helps.

    A file that somebody else took away, replaced or wrote to is written anew before the next commit, or by ``check``.

    ``close`` is for an orderly end only. A process that lost the lease leaves the file open (``abandon``) or ends by
    os._exit: a close would checkpoint and drop locks beside the new holder. A close is under the lease like any write,
    since it locks the file: one that is stopped in it is ended by whoever takes over (R_KILL).
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        executor: Executor,
        fence: Fence,
        *,
        path: Path,
        boot_id: str,
        epoch: int,
        observer: LedgerObserver | None = None,
        is_new: bool = False,
    ) -> None:
        """``is_new`` tells a ledger that was begun by this very opening."""
        self._connection = connection
        self._stamp = rescue.stamp(path)
        self._executor = executor
        self._fence = fence
        self._observer = observer
        self.path = path
        self.boot_id = boot_id
        self.epoch = epoch
        self.is_new = is_new

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        fence: Fence,
        boot_id: str,
        epoch: int = 0,
        executor: Executor | None = None,
        observer: LedgerObserver | None = None,
    ) -> Self:
        """Opens or creates the file and grows its schema. ``executor`` must run one thing at a time and is taken over;
        by default a thread of its own. Raises LedgerTooNewError, too."""
        own = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")

        def connect() -> tuple[sqlite3.Connection, bool]:
            with fence.held():
                rescue.finish(path)
                connection = files.connect(path)
                try:
                    is_new = _transact(
                        connection, lambda: schema.prepare_for_writing(connection, str(path), boot_id, epoch), path
                    )
                except BaseException:
                    connection.close()
                    raise
                # Also where its caller was cancelled meanwhile, and nobody takes it.
                _kept.add(connection)
                return connection, is_new

        try:
            connection, is_new = await asyncio.get_running_loop().run_in_executor(own, connect)
        except BaseException:
            own.shutdown(wait=False)
            raise
        return cls(connection, own, fence, path=path, boot_id=boot_id, epoch=epoch, observer=observer, is_new=is_new)

    async def check(self) -> None:
        """Writes the file anew if somebody else has touched it; LedgerDamagedError when that is too late."""

        def run() -> None:
            with self._fence.held():
                self._keep_file()

        await self._run(run)

    async def close(self) -> None:
        """Leaves the file open if the lease isn't held."""

        def close() -> None:
            try:
                with self._fence.held():
                    self._connection.close()
            except NotActiveError:
                return
            _kept.discard(self._connection)

        await asyncio.get_running_loop().run_in_executor(self._executor, close)
        self._executor.shutdown(wait=False)

    def abandon(self) -> None:
        """For one whose lease is lost: leaves the file open until the process ends."""
        self._executor.shutdown(wait=False)

    # --- claims ---
    async def claim(self, uid: str) -> ClaimRecord | None:
        return await self._read(queries.claim, uid)

    async def claims(self) -> tuple[ClaimRecord, ...]:
        """Oldest first."""
        return await self._read(queries.claims)

    async def commit_claim(self, record: ClaimRecord, devices: Sequence[HeldDevice]) -> tuple[Hold, ...]:
        """Makes the claim prepared and its devices held, or returns the holds in the way and changes nothing.

        Looking and committing are one transaction, so two claims can't both get past each other.
        """
        return await self._write(queries.commit_claim, record, devices)

    async def add_pods(self, uid: str, pods: Collection[str]) -> None:
        """Adds to the pods of a prepared claim; of no effect for one that isn't."""
        await self._write(queries.add_pods, uid, pods)

    async def refresh_claim(self, uid: str, aliases: Sequence[str]) -> None:
        """Notes that the claim's file is written anew in this boot, by this holder of the lease."""
        await self._write(queries.refresh_claim, uid, aliases, self.boot_id, self.epoch)

    async def end_claim(self, uid: str, drains: Sequence[Drain], at: datetime.datetime) -> None:
        """Takes the claim and its holds away; ``drains`` stay in the way of others until ``end_drain``."""
        await self._write(queries.end_claim, uid, drains, at.isoformat(timespec="seconds"))

    # --- what the ledger wasn't told ---
    async def adopt(
        self, strays: Sequence[tuple[ClaimRecord, Sequence[HeldDevice]]], drains: Sequence[Drain], at: datetime.datetime
    ) -> None:
        """Takes in claims that others prepared, and devices that are in use without a hold."""
        await self._write(queries.adopt, strays, drains, at.isoformat(timespec="seconds"))

    # --- holds ---
    async def conflicts(self, claim_uid: str, devices: Sequence[HeldDevice]) -> tuple[Hold, ...]:
        """Holds of others that overlap with ``devices``."""
        return await self._read(queries.conflicts, claim_uid, devices)

    async def holds_on(self, gpu_uuid: str) -> tuple[Hold, ...]:
        return await self._read(queries.holds_on, gpu_uuid)

    async def pods_on(self, gpu_uuid: str) -> Mapping[str, frozenset[str]]:
        """By claim, for every claim that has a hold on the GPU: one query, however many there are."""
        return await self._read(queries.pods_on, gpu_uuid)

    async def holds_of(self, holder_id: str) -> tuple[Hold, ...]:
        return await self._read(queries.holds_of, holder_id)

    async def draining(self) -> tuple[Hold, ...]:
        return await self._read(queries.draining)

    async def end_drain(self, hold: Hold) -> bool:
        """False when somebody else has ended it already."""
        return await self._write(queries.end_drain, hold)

    # --- names (inventory.model.NameBindings) ---
    async def bindings(self) -> Mapping[str, str]:
        return await self._read(queries.bindings)

    async def referenced_names(self) -> frozenset[str]:
        return await self._read(queries.referenced_names)

    async def set_bindings(self, bindings: Mapping[str, str]) -> None:
        """Replaces all; ValueError when a name that a hold refers to would be dropped or moved."""
        if bindings != await self.bindings():
            await self._write(queries.set_bindings, bindings)

    # --- intents ---
    async def add_intent(self, kind: str, target: str, undo: Mapping[str, Any], *, claim_uid: str = "") -> int:
        """To be awaited before the effect is done."""
        return await self._write(queries.add_intent, kind, target, undo, claim_uid, self.boot_id)

    async def mark_done(self, intent_id: int) -> None:
        await self._write(queries.mark_done, intent_id)

    async def remove_intent(self, intent_id: int) -> None:
        """After its effect has been undone, or has gone with the boot."""
        await self._write(queries.remove_intent, intent_id)

    async def intents(self) -> tuple[Intent, ...]:
        """Oldest first; undo the newest first."""
        return await self._read(queries.intents)

    # --- health verdicts ---
    async def verdicts(self) -> Mapping[str, Mapping[str, Any]]:
        """By device UUID."""
        return await self._read(queries.verdicts)

    async def set_verdict(self, device_uuid: str, verdict: Mapping[str, Any] | None) -> None:
        """None takes it away."""
        await self._write(queries.set_verdict, device_uuid, verdict)

    # --- what people have been told ---
    async def told(self) -> Mapping[str, str]:
        """Notes by subject."""
        return await self._read(queries.told)

    async def set_told(self, told: Mapping[str, str]) -> None:
        """Replaces all; writes nothing when nothing changed."""
        if told != await self.told():
            await self._write(queries.set_told, told)

    async def size(self) -> int:
        """Bytes of the file and its log."""
        files_of_it = (self.path, self.path.with_name(self.path.name + "-wal"))

        def run() -> int:
            return sum(path.stat().st_size for path in files_of_it if path.exists())

        return await asyncio.get_running_loop().run_in_executor(self._executor, run)

    async def snapshot(self) -> Snapshot:
        return await self._read(files.snapshot)

    async def _read(
        self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        def run() -> T:
            try:
                return query(self._connection, *args, **kwargs)
            except sqlite3.Error as error:
                raise files.translate(error, f"read the ledger {self.path}") from error

        return await self._run(run)

    async def _write(
        self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        def run() -> T:
            with self._fence.held():
                self._keep_file()
                try:
                    return _transact(self._connection, lambda: query(self._connection, *args, **kwargs), self.path)
                finally:
                    self._stamp = rescue.stamp(self.path)

        return await self._run(run)

    def _keep_file(self) -> None:
        if rescue.stamp(self.path) == self._stamp:
            return
        harmed = self._connection
        self._connection = rescue.write_anew(harmed, self.path)
        _kept.discard(harmed)
        _kept.add(self._connection)
        self._stamp = rescue.stamp(self.path)
        if self._observer is not None:
            self._observer.ledger_rescued(
                f"the ledger {self.path} was removed, replaced or written to while the agent had it open; it was"
                " written anew and nothing is lost; leave it alone while the agent runs"
            )

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except LedgerDamagedError as error:
            if self._observer is not None:
                self._observer.ledger_damaged(str(error))
            raise


def _transact(connection: sqlite3.Connection, work: Callable[[], T], path: Path) -> T:
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            crashpoints.reached("ledger.uncommitted")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        raise files.translate(error, f"write the ledger {path}") from error
    return result
