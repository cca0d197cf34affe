"""The story of two claims on one node, told from what the simulated cluster and the real agent say, and checked.

It adapts to the machine: on one with a single device the second claim stays pending until the first has let go.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from allocator.firstfit import NoFitError
from allocator.requests import AllocationError
from deviceclasses.names import DRIVER_NAME, TYPE_MIG
from deviceclasses.quantity import parse_quantity
from gpuclaim.demo.cdi_files import CdiFiles, compact, device_nodes
from gpuclaim.demo.kubelet import PodError
from gpuclaim.demo.page import Page
from gpuclaim.demo.stage import LOOK_SECONDS, Stage, WrongError
from gpuclaim.demo.workload import NAMESPACE, Pod, Workload, claim_spec
from kubeapi.client import Json
from kubeletplugin.app.host.hardware import open_hardware
from kubeletplugin.app.host.look import look
from kubeletplugin.inventory.model import Device

SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 64, 80, 120, 160, 240)
"""GiB of memory that the first claim may ask for."""

SHOWN = ("type", "uuid", "productName", "architecture", "driverVersion", "resource.kubernetes.io/pciBusID", "profile")
SOCKETS = (("-reg.sock", "registration"), ("dra-", "claims and health"), ("status-", "gpuclaim status"))
"""By a part of the name."""

REFUSED_SECONDS = 10.0
WAIT_SECONDS = 10.0
PID = 4711

TRAIN, SHARED, RIVAL = "train-gpu", "notebooks-gpu", "rival-gpu"


class Story:
    def __init__(self, stage: Stage, page: Page) -> None:
        self._stage = stage
        self._page = page
        self._work = Workload(stage)
        self._files = CdiFiles(stage.settings.cdi_dir)
        self._train = Pod("train")
        self._notebooks = (Pod("notebook-a"), Pod("notebook-b"))
        self._devices: dict[str, Json] = {}
        self._found: dict[str, Device] = {}

    async def tell(self) -> None:
        """Raises WrongError at the first thing that isn't as it should be."""
        try:
            await self._tell()
        except (PodError, AllocationError) as error:
            raise WrongError(str(error)) from error

    async def _tell(self) -> None:
        self._introduce()
        await self._show_node()
        self._show_slices()
        if not self._devices:
            self._page.say("This machine has no device that could be claimed: the story ends here.")
            return
        await self._claim_by_memory()
        shared = await self._claim_shared()
        self._show_files(shared)
        await self._show_status()
        await self._refuse_rival()
        await self._unprepare_train()
        if not shared:
            await self._claim_shared()
        await self._unprepare_shared()
        await self._end()

    def _introduce(self) -> None:
        page = self._page
        page.title(f"gpuclaim on a node with simulated GPUs: {self._stage.settings.machine}")
        page.say("Simulated here: GPUs, kubelet, scheduler, API server, and the pods' processes.")
        page.say("Real: the node agent with its gRPC sockets, its requests over HTTP, its ledger and its CDI files.")

    # --- what there is ---
    async def _show_node(self) -> None:
        self._page.chapter("What the node has")
        found = await look(self._stage.settings, await asyncio.to_thread(open_hardware, self._stage.settings))
        self._page.say(f"NVIDIA driver {found.driver_version}")
        for product, number in Counter(map(_product, found.devices)).items():
            self._page.say(f"{number} x {product}")
        rows = [(device.name, device.capacity["memory"], device.pci_bus_id, device.uuid) for device in found.devices]
        self._page.table(("DEVICE", "MEMORY", "PCI", "UUID"), rows)
        for gpu in found.withheld:
            self._page.say(f"withheld: GPU {gpu.index}: {gpu.reason}")
        self._found = {device.name: device for device in found.devices}

    def _show_slices(self) -> None:
        page = self._page
        page.chapter("What is published to the cluster")
        page.say("The agent has registered with the kubelet and listens on")
        root = self._stage.settings.kubelet_root_dir
        found = sorted(root.rglob("*.sock"))
        rows = [(str(path.relative_to(root)), use) for end, use in SOCKETS for path in found if end in path.name]
        page.table(("SOCKET", "FOR"), rows)
        self._check(len(rows) == len(SOCKETS) == len(found), "each of its sockets is there")
        slices = self._stage.slices()
        for item in slices:
            spec = item["spec"]
            pool, devices = spec["pool"], spec.get("devices", [])
            page.say(
                f"ResourceSlice {item['metadata']['name']}: driver {spec['driver']}, pool {pool['name']}"
                f" (generation {pool['generation']}), {_count(devices, 'device')}"
            )
            self._devices |= {device["name"]: device for device in devices}
        for name in list(self._devices)[:1]:
            page.yaml(f"one of them, {name}, with some of its attributes", _excerpt(self._devices[name]))
        self._check(self._devices.keys() == self._found.keys(), "what is published is what the node has")

    # --- claims ---
    async def _claim_by_memory(self) -> None:
        self._page.chapter("A pod's claim, by CEL on memory")
        devices = self._devices.values()
        best = max([device for device in devices if _is_partition(device)] or devices, key=_memory)
        size = max((size for size in SIZES if size * 2**30 <= _memory(best)), default=1)
        expression = f'device.capacity["{DRIVER_NAME}"].memory.compareTo(quantity("{size}Gi")) >= 0'
        device = self._schedule(TRAIN, (self._train,), claim_spec(_class_of(best), expression))
        self._check(_memory(self._devices[device]) >= size * 2**30, f"{device} has {size} GiB or more")
        await self._prepare(TRAIN, self._train, device)

    async def _claim_shared(self) -> str:
        """The device; empty when none is free."""
        self._page.chapter("One claim, shared by two pods")
        held = self._held()
        free = [device for name, device in self._devices.items() if name not in held]
        spec = claim_spec(_class_of(free[0] if free else next(iter(self._devices.values()))))
        try:
            device = self._schedule(SHARED, self._notebooks, spec)
        except NoFitError as error:
            self._page.quote("The scheduler's stand-in finds nothing, so its pods stay Pending:", str(error))
            self._check(not free, "no device is free")
            return ""
        self._check(device not in held, f"{device} is nobody else's")
        first, second = self._notebooks
        ids = await self._prepare(SHARED, first, device)
        again = await self._work.prepare(SHARED, second)
        self._check(ids == again, f"pod {second.name} gets the same ids: the claim is prepared already")
        self._stage.pods.run(second.uid, PID + 2)
        return device

    def _schedule(self, claim: str, pods: tuple[Pod, ...], spec: Json) -> str:
        page, work = self._page, self._work
        names = " and ".join(pod.name for pod in pods)
        if claim not in work.names():
            work.write(claim, spec)
            page.yaml(f"ResourceClaim {NAMESPACE}/{claim}, for {names}", work.read(claim)["spec"])
        usable = len(work.usable(claim))
        device = work.schedule(claim, pods)
        which = f"the first of {usable} that fit and are free" if usable > 1 else "the only one that fits and is free"
        page.say(f"The scheduler's stand-in allocates {device}, {which}.")
        return device

    async def _prepare(self, claim: str, pod: Pod, device: str) -> list[str]:
        ids = await self._work.prepare(claim, pod)
        self._page.document(f"NodePrepareResources for {claim} gives the kubelet these CDI ids", "\n".join(ids))
        uid = self._work.read(claim)["metadata"]["uid"]
        self._check(ids[:1] == [f"k8s.gpu.nvidia.com/claim={uid}-{device}"], f"the claim's own id names {device}")
        self._stage.pods.run(pod.uid, PID if pod is self._train else PID + 1)
        return ids

    # --- files ---
    def _show_files(self, shared: str) -> None:
        page, files = self._page, self._files
        page.chapter("What is written for the container runtime")
        uid = self._work.read(TRAIN)["metadata"]["uid"]
        path, content = files.claim(uid)
        page.document(f"{path.name}, written at NodePrepareResources", compact(content))
        path, content = files.driver()
        edits = content["containerEdits"]
        mounts, hooks = edits.get("mounts", []), edits.get("hooks", [])
        page.say(
            f"{path.name}, one for all claims: {_count(device_nodes(content), 'common device node')},"
            f" {_count(mounts, 'mount')} of the driver's files, {_count(hooks, 'hook')}"
        )
        nodes = files.gpu_nodes(uid)
        own = f"/dev/nvidia{self._found[self._device_of(TRAIN)].minor}"
        self._check(nodes == {own}, f"the claim gives {own} and no other GPU's node")
        known = files.ids()
        claims = [TRAIN, *([SHARED] if shared else [])]
        ids = {entry for claim in claims for entry in self._ids_of(claim)}
        self._check(ids <= known, f"the runtime can resolve {'both claims' if shared else 'the claim'}")

    async def _show_status(self) -> None:
        self._page.chapter("What the claim shows")
        device = self._device_of(TRAIN)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                entry = await self._shown_of(TRAIN)
        except TimeoutError as error:
            raise WrongError(f"claim {TRAIN} doesn't show {device} in its status") from error
        self._page.yaml(f"status.devices of {TRAIN}", {key: entry[key] for key in ("device", "data", "conditions")})
        self._check(entry["data"]["uuid"] == self._found[device].uuid, f"it is {device} with its UUID")
        self._check(entry["conditions"][0]["status"] == "True", "it is ready")

    async def _shown_of(self, claim: str) -> Json:
        """Written beside the prepare, not by it."""
        while True:
            for entry in self._work.read(claim)["status"].get("devices", ()):
                return dict(entry)
            await asyncio.sleep(LOOK_SECONDS)

    # --- refusals and ends ---
    async def _refuse_rival(self) -> None:
        page, work = self._page, self._work
        page.chapter("A second claim for a GPU that is held")
        device, pod = self._device_of(TRAIN), Pod("rival")
        work.write(RIVAL, work.read(TRAIN)["spec"])
        work.allocate(RIVAL, (pod,), work.read(TRAIN)["status"]["allocation"])
        page.say(f"Claim {RIVAL} is given {device}, too, by hand: as if two schedulers had raced.")
        try:
            async with asyncio.timeout(REFUSED_SECONDS):
                await work.prepare(RIVAL, pod)
        except PodError as error:
            page.quote("The agent refuses; the pod's event says:", str(error))
            self._check(device in str(error) and TRAIN in str(error), "the refusal names the device and its holder")
        except TimeoutError as error:
            raise WrongError(f"the agent doesn't answer within {REFUSED_SECONDS:g} s") from error
        else:
            raise WrongError(f"{device} was prepared for two claims")
        await work.unprepare(RIVAL, pod)
        work.delete(RIVAL)
        holders = (await self._device_status(device))["holders"]
        self._check([holder["name"] for holder in holders] == [TRAIN], f"{device} is {TRAIN}'s still")

    async def _unprepare_train(self) -> None:
        page, work = self._page, self._work
        page.chapter("The first pod ends")
        device = self._device_of(TRAIN)
        await work.unprepare(TRAIN, self._train)
        work.delete(TRAIN)
        page.say("Its claim is unprepared, but one of its processes takes its time.")
        status = await self._device_status(device)
        page.table(("DEVICE", "STATE", "REASON"), [(device, status["state"], status["holders"][0]["reason"])])
        self._check(status["state"] == "draining", "nobody else gets the device before its processes have ended")
        self._stage.pods.end(self._train.uid)
        await self._until_free(device)
        self._page.right(f"the process has ended, {device} is free")

    async def _unprepare_shared(self) -> None:
        page, work = self._page, self._work
        page.chapter("The pods that share a claim end")
        device = self._device_of(SHARED)
        first, second = self._notebooks
        self._stage.pods.end(first.uid)
        await work.unprepare(SHARED, first)
        status = await self._device_status(device)
        self._check(status["state"] == "held", f"{first.name} has ended, {device} stays {second.name}'s")
        self._stage.pods.end(second.uid)
        await work.unprepare(SHARED, second)
        work.delete(SHARED)
        await self._until_free(device)
        page.right(f"{second.name} has ended, {device} is free")

    async def _end(self) -> None:
        self._page.chapter("Nothing is left")
        devices = await self._status()
        self._page.table(("DEVICE", "STATE"), [(device["name"], device["state"]) for device in devices])
        free = {device["name"] for device in devices if device["state"] == "free"}
        self._check(free == self._devices.keys(), "all devices are free")
        self._check(not self._files.claim_files(), "no claim's CDI file is left")
        self._check(not self._stage.kubelet.claims.claims, "the kubelet has no claim left")
        before = self._stage.slices()
        await self._stage.stop_agent()
        sockets = list(self._stage.settings.kubelet_root_dir.rglob("*.sock"))
        self._check(not sockets, "the agent has stopped and left no socket")
        self._check(self._stage.slices() == before, "its ResourceSlices stay for the next one")
        self._page.title("Everything was as it should be.")

    # --- looking ---
    def _check(self, right: object, what: str) -> None:
        if not right:
            raise WrongError(what)
        self._page.right(what)

    def _held(self) -> set[str]:
        return {self._device_of(name) for name in self._work.names() if "status" in self._work.read(name)}

    def _device_of(self, claim: str) -> str:
        (result,) = self._work.read(claim)["status"]["allocation"]["devices"]["results"]
        return str(result["device"])

    def _ids_of(self, claim: str) -> list[str]:
        return self._stage.kubelet.claims.claims[NAMESPACE, claim].cdi_ids()

    async def _device_status(self, device: str) -> Mapping[str, Any]:
        return next(entry for entry in await self._status() if entry["name"] == device)

    async def _status(self) -> list[Any]:
        status = await self._stage.status()
        if "devices" not in status:
            raise WrongError(f"the agent isn't active: {status['ready']}")
        return list(status["devices"])

    async def _until_free(self, device: str) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    if (await self._device_status(device))["state"] == "free":
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as error:
            raise WrongError(f"{device} isn't free {WAIT_SECONDS:g} s after its last process") from error


def _product(device: Device) -> str:
    name = str(device.attributes["productName"].value)
    return f"{name}, partition {device.mig.profile}" if device.mig else name


def _count(items: list[Any], noun: str) -> str:
    return f"{len(items) or 'no'} {noun}" + ("" if len(items) == 1 else "s")


def _memory(device: Json) -> int:
    return int(parse_quantity(device["capacity"]["memory"]["value"]))


def _class_of(device: Json) -> str:
    return "mig.nvidia.com" if _is_partition(device) else "gpu.nvidia.com"


def _is_partition(device: Json) -> bool:
    return bool(device["attributes"]["type"]["string"] == TYPE_MIG)


def _excerpt(device: Json) -> Json:
    attributes = {name: value for name, value in device["attributes"].items() if name in SHOWN}
    return {"name": device["name"], "attributes": attributes, "capacity": {"memory": device["capacity"]["memory"]}}
