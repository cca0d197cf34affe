"""What the node agent is made of: parts that live as long as its process, and the making of those of one take-over."""

from collections.abc import Callable
from dataclasses import dataclass

from kubeapi.client import KubeApi
from kubeletplugin.app.files.cdi_specs import HostSpecs
from kubeletplugin.app.host.hardware import SYS, Hardware, NvmlDevicePids
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.settings import Settings
from kubeletplugin.app.tell.notices import NodeNotices
from kubeletplugin.app.waking.waker import Waker
from kubeletplugin.app.watch.pods import NodePods
from kubeletplugin.classic.judge import ClassicJudge
from kubeletplugin.clock import Clock
from kubeletplugin.fence import Fence
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.inventory.watcher import InventoryService
from kubeletplugin.lease.lease import Lease
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.nvml.worker import NvmlWorkers
from kubeletplugin.prepare.kubelet_state import KubeletStateFile
from kubeletplugin.prepare.manager import ClaimManager
from kubeletplugin.prepare.ports import ClaimReader, OtherPlugins
from kubeletplugin.prepare.processes import PodCgroups, PodProcesses
from kubeletplugin.slices.controller import SliceController


@dataclass(frozen=True, slots=True)
class Parts:
    """What lives as long as the process, active or not."""

    settings: Settings
    hardware: Hardware
    workers: NvmlWorkers
    inventory: InventoryService
    api: KubeApi
    lease: Lease
    slices: SliceController
    pods: NodePods
    notices: NodeNotices
    clock: Clock
    metrics: Metrics


def _processes(parts: Parts) -> PodProcesses:
    host = parts.settings.host_root
    cgroups = PodCgroups(host / str(SYS / "fs" / "cgroup").lstrip("/"), host / "proc")
    return PodProcesses(cgroups, NvmlDevicePids(parts.hardware.nvml, parts.workers))


def make_classic_judge(parts: Parts) -> ClassicJudge:
    settings = parts.settings
    return ClassicJudge.of_kubelet(settings.kubelet_root_dir, _processes(parts), parts.pods, settings.pod_uid)


def make_manager(
    parts: Parts,
    read: ClaimReader,
    ledger: Ledger,
    fence: Fence,
    specs: HostSpecs,
    inventory: Callable[[], Inventory],
    others: OtherPlugins,
    on_claims_changed: Callable[[], None],
) -> ClaimManager:
    return ClaimManager(
        api=read,
        ledger=ledger,
        specs=specs,
        inventory=inventory,
        pool_name=parts.settings.node_name,
        boot_id=parts.lease.boot_id,
        fence=fence,
        processes=_processes(parts),
        kubelet_state=KubeletStateFile(parts.settings.kubelet_root_dir),
        others=others,
        clock=parts.clock,
        notices=parts.notices,
        lost=parts.lease.lost,
        on_claims_changed=on_claims_changed,
    )


def make_waker(parts: Parts, manager: ClaimManager) -> Waker:
    kubelet = KubeletStateFile(parts.settings.kubelet_root_dir)
    return Waker(parts.api, parts.pods, manager.prospects, kubelet.read, parts.metrics, parts.clock)
