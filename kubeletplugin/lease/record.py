"""The lease file: who is active, in fixed places of a small file that is never renamed.

Three regions, each written with one pwrite and padded to its size, so that a rewrite needs no new disk block (a full
disk stops no take-over) and no reader sees a mixture of two lengths:

- the record (epoch, instance, boot id, socket, processes), changed only under the exclusive flock;
- the heartbeat, a counter that the active instance raises under a shared flock;
- the contenders, who are about to take the exclusive flock, or were when they were last seen alive: written without a
  lock, a hint for whom to end if one stops inside.

Nothing is synced to disk: the lease is void after a reboot anyway. A region that can't be read counts as empty.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from kubeletplugin.lease.processes import ProcessIdentity

RECORD_SIZE = 2048
HEARTBEAT_OFFSET = RECORD_SIZE
HEARTBEAT_SIZE = 32
CONTENDERS_OFFSET = HEARTBEAT_OFFSET + HEARTBEAT_SIZE
CONTENDERS_SIZE = 1024
CONTENDERS_KEPT = 8
PREVIOUS_KEPT = 3
"""Former holders remembered: one of them, stopped inside a shared lock, may stand in the way of the next."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """``instance`` is empty when nobody is active; ``socket`` is where the active one's gRPC services answer."""

    epoch: int = 0
    instance: str = ""
    boot_id: str = ""
    socket: str = ""
    process: ProcessIdentity | None = None
    previous: tuple[ProcessIdentity, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class LeaseSnapshot:
    record: LeaseRecord
    heartbeat: int

    def pulse(self) -> tuple[int, str, int]:
        """What changes while the active instance lives."""
        return self.record.epoch, self.record.instance, self.heartbeat


def read_snapshot(descriptor: int) -> LeaseSnapshot:
    data = os.pread(descriptor, CONTENDERS_OFFSET, 0)
    heartbeat = data[HEARTBEAT_OFFSET:].strip(b" \n\0")
    return LeaseSnapshot(parse_record(data[:RECORD_SIZE]), int(heartbeat) if heartbeat.isdigit() else 0)


def parse_record(data: bytes) -> LeaseRecord:
    try:
        fields = json.loads(data)
        process = fields["process"]
        return LeaseRecord(
            epoch=int(fields["epoch"]),
            instance=str(fields["instance"]),
            boot_id=str(fields["boot_id"]),
            socket=str(fields["socket"]),
            process=ProcessIdentity(**process) if process is not None else None,
            previous=tuple(ProcessIdentity(**item) for item in fields["previous"]),
        )
    except (ValueError, TypeError, KeyError):
        return LeaseRecord()


def write_record(descriptor: int, record: LeaseRecord) -> None:
    write_region(descriptor, 0, RECORD_SIZE, json.dumps(asdict(record)))


def write_heartbeat(descriptor: int, heartbeat: int) -> None:
    write_region(descriptor, HEARTBEAT_OFFSET, HEARTBEAT_SIZE, str(heartbeat))


def read_contenders(descriptor: int) -> tuple[ProcessIdentity, ...]:
    """The newest first."""
    try:
        found = json.loads(os.pread(descriptor, CONTENDERS_SIZE, CONTENDERS_OFFSET))
        return tuple(ProcessIdentity(**item) for item in found)
    except (ValueError, TypeError):
        return ()


def write_contenders(descriptor: int, contenders: Sequence[ProcessIdentity]) -> None:
    text = json.dumps([asdict(contender) for contender in contenders[:CONTENDERS_KEPT]])
    write_region(descriptor, CONTENDERS_OFFSET, CONTENDERS_SIZE, text)


def write_region(descriptor: int, offset: int, size: int, text: str) -> None:
    data = text.encode()
    if len(data) >= size:
        raise ValueError(f"write the lease: {len(data)} bytes don't fit in {size}")
    os.pwrite(descriptor, data.ljust(size - 1) + b"\n", offset)
