"""Which GPUs reach each other over NVLink, as two attributes for matchAttribute.

``cliqueID`` is ``<cluster UUID>.<clique>``, the text that users know from the node label: set only on a GPU that is
attached to a multi-node fabric, which means state completed, status success and a UUID that isn't zero. One string
holds both, because the number alone is equal in every rack.

``nvlinkDomain`` is the fabric's cluster UUID there. Elsewhere it is a UUID made of the node's name and
- the word "fabric", where the fabric call says that the box's own NVSwitch fabric is up (HGX Hopper and later answer
  completed with a zero UUID), or
- the lowest PCI address seen at the far end of any link of the group, where there is no such call (A100, V100,
  bridged pairs). Far ends, and not the members' own addresses, so that the name stays the same while one member can't
  be read.
A GPU without links, and a MIG partition (which has no NVLink), carries neither.
"""

import uuid
from collections.abc import Iterable

from kubeletplugin.inventory import pci
from kubeletplugin.inventory.facts import GpuFacts, NvlinkFacts
from kubeletplugin.inventory.getters import NO_SUCH_ENUM, tolerate
from kubeletplugin.nvml.api import DeviceHandle, FabricInfo, Nvml
from kubeletplugin.nvml.errors import NvmlCode, NvmlError

MAX_LINKS = 36
_STATE_COMPLETED = 3
_NO_ADDRESS = "0000:00:00.0"
_NAMESPACE = uuid.UUID("6d3b9f0e-0c55-4b0e-9a55-6d7d1f7c2b1a")


def read_nvlink(nvml: Nvml, device: DeviceHandle, remarks: list[str]) -> NvlinkFacts:
    """What the GPU says now; a fabric that is still being set up gives nothing yet."""
    try:
        fabric = nvml.fabric_info(device)
    except NvmlError as error:
        if error.unsupported:
            return NvlinkFacts(remote_ends=_remote_ends(nvml, device, remarks))
        tolerate("NVLink domain", error, remarks)
        return NvlinkFacts()
    return _from_fabric(fabric, remarks) or NvlinkFacts(remote_ends=_remote_ends(nvml, device, remarks))


def _from_fabric(fabric: FabricInfo, remarks: list[str]) -> NvlinkFacts | None:
    """None where the GPU has no fabric and only its links can tell."""
    if fabric.state == 0:
        return None
    if fabric.state != _STATE_COMPLETED:
        return NvlinkFacts()
    if fabric.status != NvmlCode.SUCCESS:
        remarks.append(f"NVLink domain left out (the fabric refused this GPU: status {fabric.status})")
        return NvlinkFacts()
    if not fabric.cluster_uuid.strip("0-"):
        return NvlinkFacts(box_fabric=True)
    return NvlinkFacts(cluster_uuid=fabric.cluster_uuid.lower(), clique_id=fabric.clique_id)


def _remote_ends(nvml: Nvml, device: DeviceHandle, remarks: list[str]) -> frozenset[str]:
    ends: set[str] = set()
    for link in range(MAX_LINKS):
        try:
            if nvml.nvlink_state(device, link):
                ends.add(pci.normalise(nvml.nvlink_remote_bus_id(device, link)) or _NO_ADDRESS)
        except NvmlError as error:
            if error.code in NO_SUCH_ENUM:
                break
            tolerate(f"NVLink {link}", error, remarks)
    return frozenset(ends - {_NO_ADDRESS})


def clique_id(facts: NvlinkFacts) -> str | None:
    return f"{facts.cluster_uuid}.{facts.clique_id}" if facts.cluster_uuid else None


def domains(gpus: Iterable[GpuFacts], node_name: str) -> dict[str, str]:
    """GPU UUID to NVLink domain, for those that are in one."""
    result: dict[str, str] = {}
    linked: list[GpuFacts] = []
    for gpu in gpus:
        if gpu.partitions is not None:
            continue
        if gpu.nvlink.cluster_uuid:
            result[gpu.uuid] = gpu.nvlink.cluster_uuid
        elif gpu.nvlink.box_fabric:
            result[gpu.uuid] = _local(node_name, "fabric")
        elif gpu.nvlink.remote_ends:
            linked.append(gpu)
    for group in _groups(linked):
        anchor = min(end for gpu in group for end in gpu.nvlink.remote_ends)
        result.update({gpu.uuid: _local(node_name, anchor) for gpu in group})
    return result


def _local(node_name: str, anchor: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{node_name}/{anchor}"))


def _groups(gpus: list[GpuFacts]) -> list[list[GpuFacts]]:
    """GPUs that share an address: a switch that both see, or one that the other names."""
    groups: list[tuple[set[str], list[GpuFacts]]] = []
    for gpu in gpus:
        addresses = {gpu.pci_bus_id, *gpu.nvlink.remote_ends}
        members = [gpu]
        apart = []
        for group in groups:
            if group[0] & addresses:
                addresses |= group[0]
                members = group[1] + members
            else:
                apart.append(group)
        groups = [*apart, (addresses, members)]
    return [members for _, members in groups]
