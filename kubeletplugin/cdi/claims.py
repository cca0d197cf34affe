"""The claims' CDI files: one small file per prepared claim, a pure function of the claim's row and the node as it is.

Contract (docs/protocol's R_ROW1, R_ALIAS, R_LOCK): the file is written after the claim's row is committed and removed
before the row ends, each under the lease's fence; it can be written again from the row at any time and then holds the
node numbers of that moment. Ids never change: the kubelet appends what a repeated Prepare returns, and an id that
doesn't resolve keeps every container of the pod from starting.

``NVIDIA_VISIBLE_DEVICES=void`` is in every file, so that a node whose default runtime is NVIDIA's doesn't add GPUs that
nobody gave. A MIG container gets the nodes of its partition and not the display nodes of the whole GPU.
"""

import re
from collections.abc import Sequence

from deviceclasses import names
from kubeletplugin.cdi import spec
from kubeletplugin.cdi.api import ClaimDevice
from kubeletplugin.cdi.driver import DRIVER_ID, VARIABLES, DriverSpecFile
from kubeletplugin.cdi.hostnodes import HostNodes
from kubeletplugin.cdi.spec import ContainerEdits, DeviceNode
from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.errors import ClaimError
from kubeletplugin.inventory.model import Device, MigIdentity

VISIBLE_DEVICES = {"NVIDIA_VISIBLE_DEVICES": "void"}

_PREFIX = f"{names.CDI_VENDOR}-{names.CDI_CLAIM_CLASS}_"
_SUFFIX = ".json"
_FILE = re.compile(re.escape(_PREFIX) + "(.+)" + re.escape(_SUFFIX))
_PEER_SUFFIX = ".yaml"
"""NVIDIA's driver writes the same devices into a file of this name."""


class ClaimSpecFiles:
    """Implements ``cdi.api.ClaimSpecs``. Methods block briefly and may be called from any thread."""

    def __init__(self, writer: SpecWriter, nodes: HostNodes, driver: DriverSpecFile) -> None:
        self._writer = writer
        self._nodes = nodes
        self._driver = driver

    def cdi_name(self, claim_uid: str, device_name: str, share_id: str | None = None) -> str:
        """With a share id, two shares of one device in one claim are two CDI devices."""
        return f"{claim_uid}-{device_name}" + (f"-{share_id}" if share_id else "")

    def device_ids(self, cdi_name: str) -> tuple[str, ...]:
        return spec.qualified_name(names.CDI_VENDOR, names.CDI_CLAIM_CLASS, cdi_name), DRIVER_ID

    def write(self, claim_uid: str, devices: Sequence[ClaimDevice], aliases: Sequence[str] = ()) -> bool:
        """Also brings the driver's file up to date where the node has changed since it was written."""
        self._driver.ensure()
        content = spec.render(self._spec(claim_uid, devices, aliases))
        return self._writer.write(_file(claim_uid), content, replaces=_peer_file(claim_uid))

    def remove(self, claim_uid: str) -> None:
        self._writer.remove(_file(claim_uid), _peer_file(claim_uid))

    def exists(self, claim_uid: str) -> bool:
        return self._writer.exists(_file(claim_uid))

    def claim_uids(self) -> frozenset[str]:
        return frozenset(uid for name in self._writer.names() if (uid := claim_of(name)))

    def _spec(self, claim_uid: str, devices: Sequence[ClaimDevice], aliases: Sequence[str]) -> spec.Spec:
        edits: dict[str, ContainerEdits] = {}
        for device in devices:
            # One device by two requests without share ids (an admin's beside an ordinary one) is one CDI device.
            env = dict(edits[device.cdi_name].env) if device.cdi_name in edits else {}
            edits[device.cdi_name] = self._device_edits(device, env)
        for alias in aliases:
            edits.setdefault(alias, ContainerEdits(env=VISIBLE_DEVICES))
        if not edits:
            raise ClaimError(f"write CDI spec of claim {claim_uid}: it has no device of this driver")
        return spec.Spec(
            vendor=names.CDI_VENDOR,
            class_=names.CDI_CLAIM_CLASS,
            devices=tuple(spec.Device(name, device_edits) for name, device_edits in edits.items()),
            edits=ContainerEdits(env=VISIBLE_DEVICES),
        )

    def _device_edits(self, device: ClaimDevice, env: dict[str, str]) -> ContainerEdits:
        env |= device.env
        if clash := sorted(env.keys() & (VARIABLES | VISIBLE_DEVICES.keys())):
            raise ValueError(f"variables {clash} of {device.cdi_name} belong to other CDI edits")
        gpu_node = self._gpu_node(device.device)
        if device.device.mig is not None:
            return ContainerEdits(env=env, device_nodes=(gpu_node, *self._caps_nodes(device.device, device.device.mig)))
        drm = self._nodes.drm(device.device.pci_bus_id)
        return ContainerEdits(env=env, device_nodes=(gpu_node, *drm), hooks=self._drm_hooks(drm))

    def _gpu_node(self, device: Device) -> DeviceNode:
        node = self._nodes.gpu(device.minor)
        if node is None:
            raise ClaimError(
                f"{device.name}: device node /dev/nvidia{device.minor} is missing on the node and couldn't be made; "
                f"run nvidia-modprobe -c {device.minor} there, or look why the driver is not loaded"
            )
        return node

    def _caps_nodes(self, device: Device, mig: MigIdentity) -> tuple[DeviceNode, ...]:
        try:
            return self._nodes.mig_caps(device.minor, mig.gpu_instance_id, mig.compute_instance_id)
        except ClaimError as error:
            raise ClaimError(f"{device.name}: {error}") from error

    def _drm_hooks(self, drm: tuple[DeviceNode, ...]) -> tuple[spec.Hook, ...]:
        """Graphics programs find a GPU by its PCI address in /dev/dri/by-path."""
        tool = self._driver.hook_tool
        links = self._nodes.drm_links(drm)
        return (tool.create_symlinks(links),) if tool is not None and links else ()


def claim_of(file: str) -> str:
    """The UID of the claim whose file is named so; empty when it is none's."""
    match = _FILE.fullmatch(file)
    return match[1] if match else ""


def _file(claim_uid: str) -> str:
    return f"{_PREFIX}{claim_uid}{_SUFFIX}"


def _peer_file(claim_uid: str) -> str:
    return f"{_PREFIX}{claim_uid}{_PEER_SUFFIX}"
