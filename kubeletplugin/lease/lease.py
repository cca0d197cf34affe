"""The lease: at any moment at most one instance of a node is active (docs/protocol: R_LOCK, R_KILL).

The active instance proves itself with a shared flock, taken without waiting and with the epoch read inside, around
every side effect. Another one becomes active by raising the epoch under the exclusive flock. Locks belong to the open
file description, so every use opens the file anew: threads don't share a lock, and a deleted lease file is noticed.

Who doesn't get the exclusive flock in time ends its holder and waits until it is gone. Only a process that the file
itself names (active, former, or about to take over) and that the kernel lists as a holder is ended.

A process that is stuck in the kernel without the lock is simply passed over: the epoch is raised, and whatever it does
when it comes back is refused. One stuck *with* the lock is in the middle of an effect (a commit to a disk that doesn't
answer) which still happens should the kernel let go, killed or not. Nobody can safely go on beside that, so the
take-over fails with a clear statement, and is tried again, until the kernel has let go or the node is restarted.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kubeletplugin.clock import Clock
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.lease import record as layout
from kubeletplugin.lease.processes import ProcessIdentity
from kubeletplugin.lease.record import LeaseRecord, LeaseSnapshot

log = logging.getLogger(__name__)


class Processes(Protocol):
    """See processes.HostProcesses."""

    def current(self) -> ProcessIdentity: ...

    def gone(self, process: ProcessIdentity) -> bool | None: ...

    def lock_holders(self, inode: int) -> frozenset[int]: ...

    def kill(self, process: ProcessIdentity) -> None: ...

    def describe(self, process: ProcessIdentity) -> str: ...


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds. Shared locks last well under a millisecond, so ``lock_wait`` is only passed by a stopped holder;
    ``kill_wait`` by one whose thread is stuck in the kernel."""

    lock_wait: float = 2.0
    kill_wait: float = 10.0
    lock_poll: float = 0.01


@dataclass(frozen=True, slots=True)
class LeaseFence:
    """Implements fence.Fence."""

    lease: "Lease"
    epoch: int

    @contextmanager
    def held(self) -> Iterator[None]:
        with self.lease.shared(self.epoch):
            yield


class Lease:
    """This instance's end of the lease. ``socket`` is what others are told to reach it by."""

    def __init__(
        self,
        path: Path,
        instance: str,
        boot_id: str,
        socket: str,
        *,
        clock: Clock,
        processes: Processes,
        timing: LeaseTiming | None = None,
    ) -> None:
        self.path = path
        self.instance = instance
        self.boot_id = boot_id
        self.socket = socket
        self._clock = clock
        self._processes = processes
        self._timing = timing or LeaseTiming()
        self._me = processes.current()
        self._epoch: int | None = None
        self._highest = 0
        self._harm_told = False
        self._heartbeat = 0

    @property
    def epoch(self) -> int | None:
        """The epoch in which this instance is active, None while it isn't. Others may have raised it since."""
        return self._epoch

    def know(self, epoch: int) -> None:
        """That there was this epoch, whatever the file says: the next is higher."""
        self._highest = max(self._highest, epoch)

    def read(self) -> LeaseSnapshot:
        """What the file says now, without a lock: good for looking, never for deciding an effect."""
        snapshot = self._read()
        self.know(snapshot.record.epoch)
        return snapshot

    def _read(self) -> LeaseSnapshot:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return LeaseSnapshot(LeaseRecord(), 0)
        except OSError as error:
            raise self._trouble("read", error) from error
        try:
            return layout.read_snapshot(descriptor)
        except OSError as error:
            raise self._trouble("read", error) from error
        finally:
            os.close(descriptor)

    def is_void(self, record: LeaseRecord) -> bool:
        """Nobody is active for sure: none recorded, another boot's, or its process is gone."""
        if not record.instance or record.boot_id != self.boot_id or record.process is None:
            return True
        return self._processes.gone(record.process) is True

    def is_ours(self, record: LeaseRecord) -> bool:
        """Recorded by this very process: a restarted container keeps its pod's UID."""
        return record.instance == self.instance and record.process == self._me

    def fence(self, epoch: int) -> "LeaseFence":
        """For the work of the activation in this epoch. What is left of it when this instance has become active again
        (a thread that outlived its cancelled task) was decided before others were, and is refused."""
        return LeaseFence(self, epoch)

    @contextmanager
    def shared(self, epoch: int | None) -> Iterator[int]:
        """The file's descriptor, locked; NotActiveError unless this instance is active in ``epoch``."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NotActiveError(f"hold the lease: open {self.path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                current = layout.read_snapshot(descriptor).record
            except BlockingIOError as error:
                raise NotActiveError("hold the lease: another instance is taking it") from error
            except OSError as error:
                raise NotActiveError(f"hold the lease: lock and read {self.path}: {error.strerror}") from error
            if epoch != self._epoch or (current.epoch, current.instance) != (epoch, self.instance):
                holder = current.instance or "nobody"
                raise NotActiveError(f"hold the lease: epoch {epoch or 'none'} is over, {holder} holds {current.epoch}")
            yield descriptor
        finally:
            os.close(descriptor)

    def beat(self) -> None:
        """One heartbeat. NotActiveError as from a fence (it may pass, ``lost`` tells); RecoverableError when the file
        can't be written."""
        with self.shared(self._epoch) as descriptor:
            self._heartbeat += 1
            try:
                layout.write_heartbeat(descriptor, self._heartbeat)
            except OSError as error:
                raise self._trouble("write", error) from error

    def lost(self) -> bool:
        """Whether the file says that this instance isn't active any more (and not just that it is locked)."""
        current = self.read().record
        return self._epoch is None or (current.epoch, current.instance) != (self._epoch, self.instance)

    def loss(self) -> str:
        """Why it is lost, for people."""
        current = self.read().record
        if current.epoch < self._highest:
            self._harm_told = True
            return self._harm()
        return f"lost the lease to {current.instance or 'nobody'}, epoch {current.epoch}"

    def _harm(self) -> str:
        return (
            f"the lease file {self.path} was removed or damaged by somebody else; it is made anew and epochs go on from"
            f" {self._highest}; leave it alone"
        )

    def blocked(self) -> str:
        """Why ``held`` fails though the lease isn't lost, for people."""
        try:
            holders = self._processes.lock_holders(os.stat(self.path).st_ino) - {self._me.pid}
        except OSError as error:
            return str(self._trouble("look at", error))
        pids = ", ".join(str(pid) for pid in sorted(holders)) or "none visible"
        return (
            f"the lease file {self.path} has been locked by somebody else for seconds (holders by pid: {pids}):"
            " everything waits until it is let go; end that process if it is no agent's"
        )

    def relinquish(self) -> None:
        """From now on every fence of this instance fails; the file is left for the next one to change."""
        self._epoch = None

    async def acquire(self, seen: LeaseRecord) -> bool:
        """Raises the epoch and becomes active, if the file still says ``seen``; False when another was quicker.

        Ends a holder that stands still in the way. RecoverableError when the lock can't be had even so.
        """
        self._announce()
        stood_still = False
        deadline = self._clock.monotonic() + self._timing.lock_wait
        while (outcome := self._try_raise(seen)) is None:
            if self._clock.monotonic() >= deadline:
                if stood_still:
                    raise RecoverableError(f"take the lease {self.path}: its lock is still held")
                await self._end_holders()
                stood_still = True
                deadline = self._clock.monotonic() + self._timing.lock_wait
            await self._clock.sleep(self._timing.lock_poll)
        return outcome

    def release(self) -> None:
        """Says in the file that nobody is active, so that another instance needn't wait; best effort, at the end."""
        self._epoch = None
        current = self.read().record
        if self.is_ours(current):
            self._change(current, replace(current, instance="", socket="", process=None), keep=self._me)

    def _announce(self) -> None:
        """Names this process as the next to take the exclusive lock. Whoever was named before stays so until it is
        gone: it may stand still inside the lock, and this process may be broken off before it notices."""
        descriptor = self._open_for_change()
        try:
            others = (item for item in layout.read_contenders(descriptor) if item != self._me)
            left = (item for item in others if self._processes.gone(item) is not True)
            layout.write_contenders(descriptor, (self._me, *left))
        except OSError as error:
            raise self._trouble("write", error) from error
        finally:
            os.close(descriptor)

    def _try_raise(self, seen: LeaseRecord) -> bool | None:
        epoch = max(seen.epoch, self._highest) + 1
        mine = LeaseRecord(epoch, self.instance, self.boot_id, self.socket, self._me, seen.previous)
        outcome = self._change(seen, mine, keep=seen.process)
        if outcome:
            if seen.epoch < self._highest and not self._harm_told:
                log.warning("%s", self._harm())
            self._harm_told = False
            self._heartbeat = 0
            self._epoch = self._highest = epoch
        return outcome

    def _change(self, seen: LeaseRecord, new: LeaseRecord, *, keep: ProcessIdentity | None) -> bool | None:
        """Compare and set under the exclusive flock; None when that isn't free now. ``keep`` joins the former ones."""
        descriptor = self._open_for_change()
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if not self._is_the_file(descriptor):
                return None
            current = layout.read_snapshot(descriptor).record
            if (current.epoch, current.instance) != (seen.epoch, seen.instance):
                return False
            previous = (keep, *seen.previous) if keep is not None else seen.previous
            layout.write_record(descriptor, replace(new, previous=previous[: layout.PREVIOUS_KEPT]))
            layout.write_heartbeat(descriptor, 0)
            return True
        except OSError as error:
            raise self._trouble("write", error) from error
        finally:
            os.close(descriptor)

    def _open_for_change(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._trouble("open", error) from error

    def _trouble(self, verb: str, error: OSError) -> RecoverableError:
        hint = "; remove that folder, the file is made anew" if isinstance(error, IsADirectoryError) else ""
        return RecoverableError(f"{verb} the lease file {self.path}: {error.strerror}{hint}")

    def _is_the_file(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _known(self) -> set[ProcessIdentity]:
        """Those that the file names as instances."""
        current = self.read().record
        descriptor = self._open_for_change()
        try:
            contenders = layout.read_contenders(descriptor)
        except OSError as error:
            raise self._trouble("read", error) from error
        finally:
            os.close(descriptor)
        return {item for item in (current.process, *contenders, *current.previous) if item is not None}

    async def _end_holders(self) -> None:
        """Ends the processes that hold the lock and are known to be instances, and waits until they are gone."""
        try:
            holders = self._processes.lock_holders(os.stat(self.path).st_ino)
        except OSError as error:
            raise self._trouble("read", error) from error
        known = self._known() - {self._me}
        guilty = [item for item in known if item.pid in holders and self._processes.gone(item) is False]
        if not guilty:
            pids = ", ".join(str(pid) for pid in sorted(holders)) or "none visible; does the pod have hostPID?"
            raise RecoverableError(f"take the lease {self.path}: locked by no known instance, holders by pid: {pids}")
        for process in guilty:
            log.warning("end the instance that stands still with the lease locked", extra={"pid": process.pid})
            self._processes.kill(process)
        deadline = self._clock.monotonic() + self._timing.kill_wait
        while not all(self._processes.gone(process) for process in guilty):
            if self._clock.monotonic() >= deadline:
                left = [process for process in guilty if not self._processes.gone(process)]
                raise RecoverableError(
                    f"take the lease {self.path}: its holder doesn't end, even killed"
                    f" ({', '.join(map(self._processes.describe, left))}); it is inside an effect that nobody may go on"
                    " beside: see the kernel's log for what it waits for, else restart the node"
                )
            await self._clock.sleep(self._timing.lock_poll)
