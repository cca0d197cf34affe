"""What a scrape shows of the node: from an inventory, a ledger's snapshot and the node's pods to series."""

import datetime
import json
from dataclasses import dataclass, field, replace

import pytest

from kubeletplugin.app.metrics.collector import NodeCollector
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.metrics.view import AgentView, LedgerView, LedgerViews
from kubeletplugin.app.watch.pods import PodContainer, PodRecord, read_pod
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory, MigIdentity, WithheldGpu
from kubeletplugin.ledger.model import ClaimRecord, HeldDevice, Hold, Holder, HoldState, Route, Snapshot
from tests.fakes.clock import VirtualClock
from tests.unit.app.metrics.exposition import Exposition, scraped

pytestmark = pytest.mark.anyio

INFO = "gpuclaim_claim_device_info"
WHO = ("claim", "request", "pod", "pod_uid", "container", "device")


def gpu(index: int, problem: str = "") -> Device:
    bus = f"0000:{index}0:00.0"
    return Device(
        f"gpu-{index}", DeviceKind.GPU, f"GPU-{index}", f"GPU-{index}", index, index, bus, {}, {}, problem=problem
    )


def partition(index: int, instance: int) -> Device:
    mig = MigIdentity("1g.10gb", 19, instance, 1, instance, 0)
    whole = gpu(index)
    return replace(
        whole, name=f"{whole.name}-mig-{instance}", kind=DeviceKind.MIG, uuid=f"MIG-{index}-{instance}", mig=mig
    )


def held(device: Device, *, admin: bool = False) -> HeldDevice:
    return HeldDevice(device.name, device.uuid, device.gpu_uuid, device.kind is DeviceKind.GPU, admin=admin)


def pod(uid: str, *containers: PodContainer, phase: str = "Running") -> PodRecord:
    known = read_pod({"metadata": {"uid": uid, "name": f"pod-{uid}", "namespace": "ns"}, "status": {"phase": phase}})
    return replace(known, containers=containers)


@dataclass
class Node:
    """An active instance on it; ``metrics`` are read as a scrape would."""

    inventory: Inventory = field(default_factory=lambda: Inventory("580.1"))
    offered: Inventory | None = None
    claims: list[ClaimRecord] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    epoch: int | None = 7
    clock: VirtualClock = field(default_factory=VirtualClock)

    def claim(self, name: str, *devices: tuple[str, Device], pods: tuple[str, ...] = (), admin: bool = False) -> None:
        """``devices`` are requests with what they were allocated."""
        entries = [{"request": request, "uuid": device.uuid} for request, device in devices]
        record = ClaimRecord(
            f"uid-{name}", "ns", name, "f", json.dumps(entries), (), (), "boot", 1, "", pods=frozenset(pods)
        )
        self.claims.append(record)
        for device in dict(devices).values():
            self.hold(device, HoldState.HELD, name, admin=admin)

    def hold(self, device: Device, state: HoldState, name: str, *, admin: bool = False, since: float = 0.0) -> None:
        holder = Holder(Route.CLAIM, f"uid-{name}", "ns", name)
        begun = (self.clock.now() - datetime.timedelta(seconds=since)).isoformat(timespec="seconds")
        self.holds.append(Hold(len(self.holds), held(device, admin=admin), holder, state, begun))

    async def scrape(self) -> Exposition:
        metrics = Metrics()
        ledger = LedgerViews(self._read, self.clock)
        metrics.add(NodeCollector(self._view, ledger, self.pods.get, self.clock))
        await ledger.refresh(self.epoch)
        return scraped(metrics.registry)

    async def _read(self) -> LedgerView:
        return LedgerView(Snapshot("boot", tuple(self.claims), tuple(self.holds)), 4096, 3)

    def _view(self) -> AgentView:
        offered = self.offered or self.inventory
        return AgentView("agent-1", "node-a", True, True, self.epoch, True, self.inventory, offered, 5, 1)


def inventory(*devices: Device, withheld: tuple[WithheldGpu, ...] = (), answered: tuple[str, ...] = ()) -> Inventory:
    return Inventory("580.1", devices, withheld, frozenset(answered))


async def test_devices_by_state_each_once() -> None:
    lost = WithheldGpu(3, "GPU-3", "0000:30:00.0", "lost")
    held_and_lost = WithheldGpu(4, "GPU-4", "0000:40:00.0", "lost")
    out = WithheldGpu(5, "GPU-5", "0000:50:00.0", "excluded", excluded=True)
    nameless = WithheldGpu(6, "", "", "silent")
    mig = [partition(7, 0), partition(7, 1)]
    node = Node(inventory(gpu(0), gpu(1), gpu(2), gpu(4, "lost"), *mig, withheld=(lost, held_and_lost, out, nameless)))
    node.claim("train", ("gpu", gpu(1)), ("more", mig[0]))
    node.claim("old", ("gpu", gpu(4, "lost")))
    node.hold(gpu(2), HoldState.DRAINING, "gone", since=90.0)
    seen = await node.scrape()
    assert seen.series("gpuclaim_devices", "device_type", "state") == {
        ("gpu", "available"): 1,
        ("gpu", "held"): 1,
        ("gpu", "draining"): 1,
        ("gpu", "withheld"): 3,
        ("gpu", "excluded"): 1,
        ("mig", "available"): 1,
        ("mig", "held"): 1,
    }
    assert seen.value("gpuclaim_devices", device_type="mig", state="draining") == 0
    assert seen.series("gpuclaim_holds", "route", "state") == {("claim", "held"): 3, ("claim", "draining"): 1}
    assert seen.value("gpuclaim_oldest_drain_seconds") == 90
    assert seen.series("nvidia_dra_prepared_devices", "node", "driver", "device_type") == {
        ("node-a", "gpu.nvidia.com", "gpu"): 2,
        ("node-a", "gpu.nvidia.com", "mig"): 1,
    }
    assert seen.value("gpuclaim_claims_prepared") == 2


async def test_what_is_wrong_with_a_device_shows_although_it_is_held() -> None:
    out = WithheldGpu(2, "GPU-2", "0000:20:00.0", "excluded", excluded=True)
    lost = WithheldGpu(7, "GPU-7", "0000:70:00.0", "lost")
    gone, of_a_lost_gpu = replace(partition(3, 1), problem="the layout was changed"), partition(7, 0)
    node = Node(inventory(gpu(2, "excluded"), partition(3, 0), gone, of_a_lost_gpu, withheld=(out, lost)))
    node.claim("train", ("gpu", gpu(2)), ("gone", gone), ("lost", of_a_lost_gpu))
    seen = await node.scrape()
    assert seen.series("gpuclaim_devices", "device_type", "state") == {
        ("gpu", "excluded"): 1,
        ("gpu", "withheld"): 1,
        ("mig", "withheld"): 1,
        ("mig", "available"): 1,
    }
    assert seen.series("gpuclaim_holds", "route", "state") == {("claim", "held"): 3}


async def test_a_device_that_is_kept_for_an_administrator_is_withheld() -> None:
    lost = WithheldGpu(1, "GPU-1", "0000:10:00.0", "lost")
    gone, of_a_lost_gpu = replace(partition(0, 1), problem="the layout was changed"), gpu(1, "lost")
    node = Node(inventory(partition(0, 0), gone, of_a_lost_gpu, withheld=(lost,)))
    node.claim("monitor", ("gone", gone), ("lost", of_a_lost_gpu), admin=True)
    assert (await node.scrape()).series("gpuclaim_devices", "device_type", "state") == {
        ("mig", "available"): 1,
        ("mig", "withheld"): 1,
        ("gpu", "withheld"): 1,
    }


async def test_a_device_that_another_plugin_gave_out_is_withheld_and_healthy() -> None:
    node = Node(inventory(gpu(0), answered=("GPU-0",)))
    node.offered = inventory(gpu(0, "another device plugin gave it out"), answered=("GPU-0",))
    seen = await node.scrape()
    assert seen.series("gpuclaim_devices", "state") == {("withheld",): 1}
    assert seen.series("gpuclaim_device_health_info", "health") == {("Healthy",): 1}


async def test_administrative_access_holds_nothing() -> None:
    node = Node(inventory(gpu(0)))
    node.claim("monitor", ("gpu", gpu(0)), admin=True)
    seen = await node.scrape()
    assert seen.series("gpuclaim_devices", "device_type", "state") == {("gpu", "available"): 1}
    assert seen.series(INFO, "claim", "admin_access") == {("monitor", "true"): 1}
    assert seen.series("nvidia_dra_prepared_devices", "device_type") == {("gpu",): 1}


async def test_health_of_each_device() -> None:
    node = Node(inventory(gpu(0), gpu(1), gpu(2, "the MIG layout was changed"), answered=("GPU-0", "GPU-2")))
    seen = await node.scrape()
    assert seen.series("gpuclaim_device_health_info", "device", "pci_address", "health") == {
        ("gpu-0", "0000:00:00.0", "Healthy"): 1,
        ("gpu-1", "0000:10:00.0", "Unknown"): 1,
        ("gpu-2", "0000:20:00.0", "Unhealthy"): 1,
    }


async def test_who_has_what_joins_claim_pod_container_and_device() -> None:
    mig = partition(7, 2)
    node = Node(inventory(gpu(0), gpu(1), mig))
    node.claim("train", ("big", gpu(0)), ("small/cheap", gpu(1)), pods=("1",))
    node.claim("serve", ("gpu", mig), pods=("2", "3"))
    node.pods["1"] = pod(
        "1",
        PodContainer("both", (("train", ""),)),
        PodContainer("one", (("train", "small"), ("other", ""))),
        PodContainer("none", (("other", "big"),)),
    )
    node.pods["2"] = pod("2", PodContainer("main", (("serve", "gpu"),)))
    node.pods["3"] = pod("3", PodContainer("side", (("serve", ""),)))
    seen = await node.scrape()
    assert seen.series(INFO, *WHO) == {
        ("train", "big", "pod-1", "1", "both", "gpu-0"): 1,
        ("train", "small/cheap", "pod-1", "1", "both", "gpu-1"): 1,
        ("train", "small/cheap", "pod-1", "1", "one", "gpu-1"): 1,
        ("serve", "gpu", "pod-2", "2", "main", "gpu-7-mig-2"): 1,
        ("serve", "gpu", "pod-3", "3", "side", "gpu-7-mig-2"): 1,
    }
    assert seen.series(INFO, "claim", "claim_uid", "uuid", "UUID", "GPU_I_ID", "pci_address", "namespace") == {
        ("train", "uid-train", "GPU-0", "GPU-0", "", "0000:00:00.0", "ns"): 1,
        ("train", "uid-train", "GPU-1", "GPU-1", "", "0000:10:00.0", "ns"): 1,
        ("serve", "uid-serve", "MIG-7-2", "GPU-7", "2", "0000:70:00.0", "ns"): 1,
    }


async def test_a_pod_that_is_unknown_or_over_leaves_the_device_in_the_series() -> None:
    node = Node(inventory(gpu(0), gpu(1)))
    node.claim("train", ("gpu", gpu(0)), pods=("1", "2"))
    node.claim("serve", ("gpu", gpu(1)), pods=("3",))
    node.pods["2"] = pod("2", PodContainer("main", (("train", ""),)), phase="Succeeded")
    node.pods["3"] = pod("3")
    seen = await node.scrape()
    assert seen.series(INFO, *WHO) == {
        ("train", "gpu", "", "", "", "gpu-0"): 1,
        ("serve", "gpu", "pod-3", "3", "", "gpu-1"): 1,
    }


async def test_a_device_that_drains_belongs_to_nobody() -> None:
    node = Node(inventory(gpu(0)))
    node.hold(gpu(0), HoldState.DRAINING, "gone")
    assert (await node.scrape()).series(INFO, *WHO) == {}


async def test_a_device_that_isnt_seen_any_more_is_shown_as_the_ledger_knows_it() -> None:
    node = Node(inventory())
    node.claim("train", ("gpu", gpu(0)))
    assert (await node.scrape()).series(INFO, "device", "uuid", "pci_address") == {("gpu-0", "GPU-0", ""): 1}


async def test_an_instance_that_isnt_active_shows_only_itself() -> None:
    node = Node(inventory(gpu(0)), epoch=None)
    seen = await node.scrape()
    assert seen.value("gpuclaim_agent_active") == 0
    assert seen.value("gpuclaim_agent_ready") == 1
    shown = {"gpuclaim_devices", "gpuclaim_claims_prepared", "gpuclaim_lease_epoch", "gpuclaim_driver_info", INFO}
    assert not seen.names() & shown


async def test_the_agent_itself() -> None:
    seen = await Node().scrape()
    assert seen.value("gpuclaim_agent_active") == 1
    assert seen.value("gpuclaim_agent_registered") == 1
    assert seen.value("gpuclaim_lease_epoch") == 7
    assert seen.value("gpuclaim_slices_accepted") == 1
    assert seen.value("gpuclaim_build_info", instance_uid="agent-1", version="0.1.0") == 1
    assert seen.value("gpuclaim_driver_info", driver_version="580.1") == 1
    assert seen.value("gpuclaim_events_written_total") == 5
    assert seen.value("gpuclaim_events_dropped_total") == 1
    assert seen.value("gpuclaim_ledger_size_bytes") == 4096
    assert seen.value("gpuclaim_claims_waiting") == 3
    assert (seen.value("process_resident_memory_bytes") or 0) > 1e6
