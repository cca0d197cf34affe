"""The lease file: who is active, in fixed places of a small file that is never renamed.

Three regions, each written with one pwrite and padded to its size, so that a rewrite needs no new disk block (a full
disk stops no take-over) and no reader sees a mixture of two lengths:

- the record (epoch, instance, boot id, socket, processes), changed only under the exclusive flock;
- the heartbeat, a counter that the active instance raises under a shared flock;
- the contender, who is about to take the exclusive flock: written without a lock, a hint for whom to end if it stops
  inside.

Nothing is synced to disk: the lease is void after a reboot anyway. A region that can't be read counts as empty.
"""

import json
import os
from dataclasses import asdict, dataclass, field

from kubeletplugin.lease.processes import ProcessIdentity

RECORD_SIZE = 2048
HEARTBEAT_OFFSET = RECORD_SIZE
HEARTBEAT_SIZE = 32
CONTENDER_OFFSET = HEARTBEAT_OFFSET + HEARTBEAT_SIZE
CONTENDER_SIZE = 256
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
    data = os.pread(descriptor, CONTENDER_OFFSET, 0)
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


def read_contender(descriptor: int) -> ProcessIdentity | None:
    try:
        return ProcessIdentity(**json.loads(os.pread(descriptor, CONTENDER_SIZE, CONTENDER_OFFSET)))
    except (ValueError, TypeError):
        return None


def write_contender(descriptor: int, contender: ProcessIdentity) -> None:
    write_region(descriptor, CONTENDER_OFFSET, CONTENDER_SIZE, json.dumps(asdict(contender)))


def write_region(descriptor: int, offset: int, size: int, text: str) -> None:
    data = text.encode()
    if len(data) >= size:
        raise ValueError(f"write the lease: {len(data)} bytes don't fit in {size}")
    os.pwrite(descriptor, data.ljust(size - 1) + b"\n", offset)
