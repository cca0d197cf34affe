"""One look at the node: every GPU on its own, all at the same time, each error bound to its GPU.

A GPU that hangs, is lost, or can't give what every device must carry is withheld with a reason; its neighbours don't
notice. Two GPUs that claim the same UUID or minor number are both withheld, since handing out one of them could open
the other's device node. The look itself fails (NvmlError) only when the driver doesn't answer for the node.

Devices leave here under their plain names; binding them to UUIDs is ``naming``'s, keeping held ones is
``retention``'s.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, TypeVarTuple

from kubeletplugin.inventory import attributes, exclusion, nvlink, versions
from kubeletplugin.inventory.exclusion import Exclusion, Identity
from kubeletplugin.inventory.facts import GpuFacts, NodeFacts
from kubeletplugin.inventory.getters import SESSION_LOST
from kubeletplugin.inventory.model import Device, Inventory, Notice, WithheldGpu
from kubeletplugin.inventory.reading import ProbeError, Surroundings, identify, read_gpu
from kubeletplugin.nvml.api import Nvml
from kubeletplugin.nvml.errors import NvmlCode, NvmlError, NvmlTimeoutError
from kubeletplugin.nvml.worker import SYSTEM_KEY

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Workers(Protocol):
    """Runs blocking NVML calls with a deadline (nvml.worker.NvmlWorkers). Calls with one key never overlap; one that
    hangs holds up its key only. Raises NvmlTimeoutError. ``timeout`` in seconds, None for the usual one."""

    async def call(self, key: str, fn: Callable[[*Ts], T], *args: *Ts, timeout: float | None = None) -> T: ...


@dataclass(frozen=True, slots=True)
class Enumerated:
    """A GPU that NVML lists, by its index, with what is known of it and what came of reading it."""

    index: int
    identity: Identity
    facts: GpuFacts | None = None
    excluded: bool = False
    reason: str = ""
    code: int = NvmlCode.SUCCESS


@dataclass(frozen=True, slots=True)
class Look:
    """``inventory`` has plain names and knows nothing of former looks. ``unseen`` are addresses of GPUs that are on
    the PCI bus for the NVIDIA driver but that NVML doesn't list. ``renewal`` says why beginning NVML anew may help:
    GPU and code, which stay the same while it lasts, to the reason in words; empty when nothing calls for it."""

    inventory: Inventory
    gpus: tuple[Enumerated, ...]
    unseen: tuple[str, ...] = ()
    renewal: Mapping[str, str] = field(default_factory=dict)


class InventoryProber:
    """Looks at the node through an initialised Nvml. One look at a time."""

    def __init__(
        self,
        nvml: Nvml,
        workers: Workers,
        around: Surroundings,
        *,
        node_name: str = "",
        call_seconds: float | None = None,
    ) -> None:
        self._nvml = nvml
        self._workers = workers
        self._around = around
        self._node_name = node_name
        self._call_seconds = call_seconds
        self._seen: tuple[Enumerated, ...] = ()

    def gpu_of(self, key: str) -> str:
        """The GPU whose calls have ``key``, by the UUID that it had in the last look, or ``key`` itself."""
        return next((gpu.identity.uuid for gpu in self._seen if key == f"index {gpu.index}"), key)

    async def look(self, exclusions: Sequence[Exclusion] = ()) -> Look:
        """Raises NvmlError when the driver doesn't answer for the node as a whole."""
        count, node, node_notices = await self._workers.call(
            SYSTEM_KEY, _read_node, self._nvml, timeout=self._call_seconds
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._read(index, exclusions)) for index in range(count)]
        named = _name_the_silent([task.result() for task in tasks], self._seen, exclusions)
        gpus = _without_twins(_with_one_text(named, self._seen))
        self._seen = tuple(gpu for gpu in gpus if gpu.identity.uuid)
        unseen = self._unseen(gpus)
        notices = (
            *node_notices,
            *(Notice("", _why_unseen(address)) for address in unseen),
            *exclusion.unmatched(exclusions, [gpu.identity for gpu in gpus]),
        )
        return Look(_inventory(gpus, node, notices, self._node_name), gpus, unseen, _renewal(gpus))

    async def _read(self, index: int, exclusions: Sequence[Exclusion]) -> Enumerated:
        identity = Identity("", "")
        try:
            # Not the GPU's own worker: whose index this is isn't known yet.
            found = await self._call(f"index {index}", identify, self._nvml, index)
            identity = Identity(found.uuid, found.pci_bus_id)
            if (rule := exclusion.find(exclusions, identity)) is not None:
                return Enumerated(index, identity, excluded=True, reason=rule.explain())
            if found.problem is not None:
                raise found.problem
            facts = await self._call(found.uuid, read_gpu, self._nvml, index, found, self._around)
        except NvmlError as error:
            return Enumerated(index, identity, reason=_explain(error), code=error.code)
        except ProbeError as error:
            return Enumerated(index, identity, reason=str(error))
        except Exception as error:  # a driver's odd answer must cost this GPU only
            log.exception("read GPU %d (%s)", index, identity.uuid or "UUID unknown")
            return Enumerated(
                index, identity, reason=f"reading it failed unexpectedly ({error!r}): see the agent's log"
            )
        return Enumerated(index, identity, facts)

    async def _call(self, key: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._workers.call(key, fn, *args, timeout=self._call_seconds)

    def _unseen(self, gpus: Sequence[Enumerated]) -> tuple[str, ...]:
        listed = {gpu.identity.pci_bus_id for gpu in gpus}
        if "" in listed:
            return ()
        on_bus = self._around.sysfs.nvidia_gpus()
        return tuple(gpu.address for gpu in on_bus if gpu.expected_in_nvml and gpu.address not in listed)


def _read_node(nvml: Nvml) -> tuple[int, NodeFacts, tuple[Notice, ...]]:
    notices: list[Notice] = []
    raw = nvml.driver_version()
    version = versions.normalise(raw)
    if version is None:
        notices.append(Notice("", f"driver version {raw!r} isn't a version: published as {versions.UNKNOWN_VERSION}"))
    try:
        cuda = versions.from_cuda_driver(nvml.cuda_driver_version())
    except NvmlError as error:
        if error.code in SESSION_LOST - {NvmlCode.LIBRARY_NOT_FOUND}:
            raise
        cuda = versions.UNKNOWN_VERSION
        notices.append(Notice("", f"CUDA driver version can't be read ({error}): published as {cuda}"))
    facts = NodeFacts(version or versions.UNKNOWN_VERSION, raw, cuda)
    return nvml.device_count(), facts, tuple(notices)


def _name_the_silent(
    gpus: Sequence[Enumerated], seen: Sequence[Enumerated], exclusions: Sequence[Exclusion]
) -> tuple[Enumerated, ...]:
    """A GPU that didn't say who it is, is the one that was ``seen`` at its PCI address before; if it gave no address
    either, the one that was at its index, as long as the others still stand where they stood. Never one that is
    accounted for now. One that was excluded stays so."""
    indices = {old.identity.uuid: old.index for old in seen}
    in_order = len(gpus) >= len(seen) and all(
        indices.get(gpu.identity.uuid, gpu.index) == gpu.index for gpu in gpus if gpu.identity.uuid
    )
    named = {gpu.index: gpu for gpu in gpus}
    taken = {gpu.identity.uuid for gpu in gpus}
    for gpu in sorted(gpus, key=lambda gpu: not gpu.identity.pci_bus_id):
        if gpu.identity.uuid:
            continue
        known = next((old.identity for old in seen if _same_place(old, gpu, in_order)), None)
        if known is not None and known.uuid not in taken:
            taken.add(known.uuid)
            named[gpu.index] = _named(gpu, known, exclusions)
    return tuple(named[gpu.index] for gpu in gpus)


def _same_place(old: Enumerated, gpu: Enumerated, in_order: bool) -> bool:
    if gpu.identity.pci_bus_id:
        return old.identity.pci_bus_id == gpu.identity.pci_bus_id
    return in_order and old.index == gpu.index


def _named(gpu: Enumerated, known: Identity, exclusions: Sequence[Exclusion]) -> Enumerated:
    if not gpu.excluded and (rule := exclusion.find(exclusions, known)) is not None:
        return Enumerated(gpu.index, known, excluded=True, reason=rule.explain())
    return replace(gpu, identity=known)


def _with_one_text(gpus: Sequence[Enumerated], seen: Sequence[Enumerated]) -> tuple[Enumerated, ...]:
    """A trouble with one code keeps its first text while it lasts, since a new text is a new Event: which call meets it
    first differs from look to look."""
    before = {(old.identity.uuid, old.code): old.reason for old in seen if old.code != NvmlCode.SUCCESS}
    return tuple(replace(gpu, reason=before.get((gpu.identity.uuid, gpu.code), gpu.reason)) for gpu in gpus)


def _without_twins(gpus: tuple[Enumerated, ...]) -> tuple[Enumerated, ...]:
    uuids = Counter(gpu.facts.uuid for gpu in gpus if gpu.facts)
    minors = Counter(gpu.facts.minor for gpu in gpus if gpu.facts)
    result = []
    for gpu in gpus:
        if gpu.facts and uuids[gpu.facts.uuid] > 1:
            gpu = Enumerated(gpu.index, gpu.identity, reason="another GPU reports the same UUID")
        elif gpu.facts and minors[gpu.facts.minor] > 1:
            reason = f"another GPU reports the same minor number, {gpu.facts.minor}"
            gpu = Enumerated(gpu.index, gpu.identity, reason=reason)
        result.append(gpu)
    return tuple(result)


def _inventory(gpus: Sequence[Enumerated], node: NodeFacts, notices: Sequence[Notice], node_name: str) -> Inventory:
    read = [gpu.facts for gpu in gpus if gpu.facts]
    domains = nvlink.domains(read, node_name)
    devices: list[Device] = []
    withheld = [_withheld(gpu, gpu.reason) for gpu in gpus if gpu.facts is None]
    for gpu in gpus:
        if gpu.facts is None:
            continue
        if gpu.facts.partitions is None:
            devices.append(attributes.gpu_device(gpu.facts, node, domains.get(gpu.facts.uuid)))
        else:
            devices.extend(attributes.mig_device(gpu.facts, part, node) for part in gpu.facts.partitions)
            if not gpu.facts.partitions:
                withheld.append(_withheld(gpu, "MIG mode is on and no partition exists: create some, or turn it off"))
    return Inventory(
        driver_version=node.driver_version_raw,
        devices=tuple(sorted(attributes.within_limit(devices), key=lambda device: device.place)),
        withheld=tuple(sorted(withheld, key=lambda gpu: gpu.index)),
        answered=frozenset(facts.uuid for facts in read),
        lost=frozenset(gpu.identity.uuid for gpu in gpus if gpu.code == NvmlCode.GPU_IS_LOST and gpu.identity.uuid),
        notices=(*notices, *(Notice(facts.uuid, remark) for facts in read for remark in facts.remarks)),
    )


def _withheld(gpu: Enumerated, reason: str) -> WithheldGpu:
    return WithheldGpu(gpu.index, gpu.identity.uuid, gpu.identity.pci_bus_id, reason, gpu.excluded)


def _explain(error: NvmlError) -> str:
    """Without the call where it tells nothing: any of them may hang, or say first that the GPU is gone."""
    if isinstance(error, NvmlTimeoutError):
        return "NVML gave no answer in time: the GPU is offered again once NVML answers for it"
    if error.code == NvmlCode.GPU_IS_LOST:
        return "the GPU is lost (GPU_IS_LOST): it fell off the bus or crashed; reset it or reboot the node"
    if error.code == NvmlCode.RESET_REQUIRED:
        return f"the GPU needs a reset ({error})"
    return f"NVML can't give what every device must carry ({error}): it is offered again once NVML can"


def _why_unseen(address: str) -> str:
    return f"GPU {address} is on the PCI bus but NVML doesn't list it: see the kernel log (NVRM)"


def _renewal(gpus: Sequence[Enumerated]) -> dict[str, str]:
    return {
        f"{gpu.identity.uuid or gpu.identity.pci_bus_id or gpu.index} {gpu.code:d}": f"GPU {gpu.index}: {gpu.reason}"
        for gpu in gpus
        if gpu.code in SESSION_LOST or gpu.code == NvmlCode.GPU_IS_LOST
    }
