"""The node's inventory over time: what the rest of the agent reads and follows.

- Until a first look succeeds there is no inventory, so a driver that comes late never means an empty pool. The look is
  tried again with back-off for ever; each new reason is reported once.
- Then the node is looked at every RESCAN_SECONDS (unless told otherwise), and at once on ``refresh()``. A changed MIG
  layout, a GPU added or gone, a reloaded driver are all just a different look.
- A look that fails as a whole changes nothing but ``answered`` (nothing did). After DRIVER_GONE_SECONDS of that the
  driver isn't slow but gone, and what nobody refers to is withdrawn, so that pods go to nodes that can serve them.
- Names come through the bindings while this instance has them (the active one), plain otherwise. A device that someone
  refers to stays, by its UUID, with its ``problem`` (see ``retention``).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from kubeletplugin.clock import Clock
from kubeletplugin.errors import AgentError, NotActiveError, RecoverableError
from kubeletplugin.inventory import naming, retention
from kubeletplugin.inventory.broadcast import Latest
from kubeletplugin.inventory.exclusion import Exclusion
from kubeletplugin.inventory.getters import SESSION_LOST
from kubeletplugin.inventory.model import Inventory, NameBindings, WithheldGpu
from kubeletplugin.inventory.probe import InventoryProber, Look
from kubeletplugin.inventory.session import NvmlSession
from kubeletplugin.nvml.errors import NvmlCode, NvmlError, NvmlTimeoutError

log = logging.getLogger(__name__)

RESCAN_SECONDS = 10.0
"""Three looks within the 30 s after which the kubelet calls a device's health unknown."""

RETRY_SECONDS = (1.0, 2.0, 4.0)
"""After the first, second, ... failed look in a row; as between any two looks from then on."""

DRIVER_GONE_SECONDS = 60.0
"""A driver reload takes seconds, its upgrade minutes."""

BINDING_TRIES = 3
"""A claim may take a name between reading the bindings and writing them; it doesn't do so often."""


class DriverNotReadyError(RecoverableError):
    """The driver answers, but without the GPUs that should be there."""


@dataclass(slots=True)
class _Failure:
    text: str
    since: float
    count: int = 1


class InventoryService:
    """One per process, on one event loop; ``run`` does all the work, everything else only asks."""

    def __init__(
        self,
        prober: InventoryProber,
        session: NvmlSession,
        clock: Clock,
        *,
        exclusions: Callable[[], Sequence[Exclusion]] = tuple,
        ensure_nodes: Callable[[frozenset[int]], object] | None = None,
        rescan_seconds: float = RESCAN_SECONDS,
    ) -> None:
        """``exclusions`` is asked at every look. ``ensure_nodes`` (DeviceNodeKeeper.ensure) gets the minor numbers of
        the devices after each successful one, in a thread."""
        self._prober = prober
        self._session = session
        self._clock = clock
        self._exclusions = exclusions
        self._ensure_nodes = ensure_nodes
        self._rescan_seconds = rescan_seconds
        self._bindings: NameBindings | None = None
        self._looks: Latest[Inventory] = Latest()
        self._changes: Latest[Inventory] = Latest()
        self._known: dict[str, WithheldGpu] = {}
        self._failure: _Failure | None = None
        self._waiters: list[asyncio.Future[Inventory]] = []
        self._wanted = asyncio.Event()

    # --- asking ---
    @property
    def current(self) -> Inventory | None:
        """As of the last look; None before the first that succeeded."""
        return self._looks.value

    @property
    def problem(self) -> str:
        """Why the last look failed as a whole; empty when it didn't."""
        return self._failure.text if self._failure else ""

    def changes(self) -> AsyncIterator[Inventory]:
        """The inventory, and the newest one whenever what it says of devices differs."""
        return self._changes.follow()

    def looks(self) -> AsyncIterator[Inventory]:
        """The inventory after every look, changed or not: for health, which also wants to know that nothing did."""
        return self._looks.follow()

    async def refresh(self) -> Inventory:
        """The outcome of a look that begins after this call. Raises RecoverableError when it fails."""
        future: asyncio.Future[Inventory] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        self._wanted.set()
        return await future

    def use_bindings(self, bindings: NameBindings | None) -> None:
        """Bound names from now on (take-over), or plain ones (None, when yielding). Looks again at once."""
        self._bindings = bindings
        self._wanted.set()

    # --- working ---
    async def run(self) -> None:
        """Looks for ever; ends by cancellation only, then ends the NVML session."""
        try:
            while True:
                await self._look_once()
                await self._pause()
        finally:
            for future in self._waiters:
                future.cancel()
            await self._session.end()

    async def _pause(self) -> None:
        failures = self._failure.count if self._failure else 0
        seconds = self._rescan_seconds
        if 0 < failures <= len(RETRY_SECONDS):
            seconds = min(seconds, RETRY_SECONDS[failures - 1])
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait((sleep, wanted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wanted.cancel()

    async def _look_once(self) -> None:
        self._wanted.clear()
        waiters, self._waiters = self._waiters, []
        try:
            inventory = await self._look()
        except (NvmlError, AgentError) as error:
            await self._failed(error)
            _settle(waiters, error)
            return
        except asyncio.CancelledError:
            for future in waiters:
                future.cancel()
            raise
        except Exception as error:  # one odd answer of a driver must not end the looking
            log.exception("look at the GPUs")
            await self._failed(error)
            _settle(waiters, error)
            return
        if self._failure is not None:
            log.info("the GPUs can be read again: %d devices", len(inventory.devices))
            self._failure = None
        self._publish(inventory)
        _settle(waiters, inventory)

    async def _look(self) -> Inventory:
        look = await self._probe()
        if cause := self._why_renew(look):
            if self._session.may_renew(cause):
                log.info("begin the NVML session anew: %s", cause)
                await self._session.renew()
                look = await self._prober.look(self._exclusions())
        else:
            self._session.cured()
        self._require_gpus(look)
        inventory = retention.with_gone(look.inventory, self._remember(look), self._known)
        inventory = await self._bound(inventory)
        if self._ensure_nodes is not None:
            minors = frozenset(device.minor for device in inventory.devices if not device.problem)
            await asyncio.to_thread(self._ensure_nodes, minors)
        return inventory

    async def _probe(self) -> Look:
        """Through a new session when the driver was reloaded under the old one."""
        begun = self._session.generation
        await self._session.ensure()
        try:
            return await self._prober.look(self._exclusions())
        except NvmlError as error:
            if error.code not in SESSION_LOST or self._session.generation != begun:
                raise
            log.info("begin the NVML session anew: %s", error)
        await self._session.renew()
        return await self._prober.look(self._exclusions())

    def _why_renew(self, look: Look) -> str:
        if look.renewal:
            return look.renewal
        listed = {gpu.identity.uuid for gpu in look.gpus}
        missing = sorted((self._known.keys() - listed) | frozenset(look.unseen))
        return f"NVML doesn't list {', '.join(missing)}" if missing and "" not in listed else ""

    def _require_gpus(self, look: Look) -> None:
        if look.gpus:
            return
        if look.unseen:
            raise DriverNotReadyError(
                f"the driver shows none of the {len(look.unseen)} NVIDIA GPUs on the PCI bus: wait for its kernel"
                " module, or see the kernel log (NVRM)"
            )
        if self._known:
            raise DriverNotReadyError("the driver shows no GPU any more: it is being reloaded, or its GPUs are gone")

    def _remember(self, look: Look) -> frozenset[str]:
        """The UUIDs to count as listed. While a GPU doesn't say who it is, none can be called gone."""
        listed = {gpu.identity.uuid for gpu in look.gpus}
        if "" in listed:
            listed |= self._known.keys()
        for gpu in look.gpus:
            uuid, address = gpu.identity.uuid, gpu.identity.pci_bus_id
            if uuid:
                self._known[uuid] = WithheldGpu(gpu.index, uuid, address or self._address_of(uuid), "")
        return frozenset(listed)

    def _address_of(self, uuid: str) -> str:
        return self._known[uuid].pci_bus_id if uuid in self._known else ""

    async def _bound(self, look: Inventory) -> Inventory:
        """``look`` under bound names, with the devices that are still referred to."""
        bindings = self._bindings
        before = self.current.devices if self.current else ()
        for _ in range(BINDING_TRIES):
            bound = dict(await bindings.bindings()) if bindings else {}
            referenced = await bindings.referenced_names() if bindings else frozenset()
            assigned = naming.assign(look.devices, bound, referenced)
            if bindings and assigned.bindings != bound:
                try:
                    await bindings.set_bindings(assigned.bindings)
                except ValueError:
                    continue
                except NotActiveError:
                    log.debug("bind device names: this instance isn't active any more")
            named = (replace(device, name=assigned.names[device.uuid]) for device in look.devices)
            return retention.with_held(replace(look, devices=tuple(named)), before, referenced)
        raise RecoverableError("bind device names: claims took names faster than they could be written")

    async def _failed(self, error: Exception) -> None:
        now = self._clock.monotonic()
        text = explain(error)
        if self._failure is None or self._failure.text != text:
            log.warning("look at the GPUs: %s", text)
        if self._failure is None:
            self._failure = _Failure(text, now)
        else:
            self._failure.text = text
            self._failure.count += 1
        # A driver that hangs would hang in the shutdown too.
        if isinstance(error, NvmlError | DriverNotReadyError) and not isinstance(error, NvmlTimeoutError):
            await self._session.end()
        if self.current is not None:
            await self._without_answers(self.current, now - self._failure.since, text)

    async def _without_answers(self, current: Inventory, seconds: float, text: str) -> None:
        unanswered = replace(current, answered=frozenset())
        if seconds >= DRIVER_GONE_SECONDS:
            referenced: frozenset[str] = frozenset()
            if self._bindings is not None:
                with contextlib.suppress(AgentError):
                    referenced = await self._bindings.referenced_names()
            unanswered = retention.withdrawn(current, referenced, self._known, text)
        self._publish(unanswered)

    def _publish(self, inventory: Inventory) -> None:
        self._looks.set(inventory)
        published = self._changes.value
        if published is None or replace(inventory, answered=published.answered) != published:
            self._changes.set(inventory)


def explain(error: Exception) -> str:
    """What a failed look means and what to do, for a log line, an Event and `gpuclaim status`."""
    code = error.code if isinstance(error, NvmlError) else None
    hint = _HINTS.get(code) if code is not None else None
    return f"{error}: {hint}" if hint else str(error)


_HINTS: dict[int, str] = {
    NvmlCode.LIBRARY_NOT_FOUND: "install the NVIDIA driver on the node, or name its root; trying again",
    NvmlCode.DRIVER_NOT_LOADED: "load the nvidia kernel module (nvidia-smi says why it isn't); trying again",
    NvmlCode.LIB_RM_VERSION_MISMATCH: "kernel module and library are of different versions: finish the driver's"
    " upgrade (reload the module or reboot); trying again",
    NvmlCode.NO_PERMISSION: "the agent needs access to /dev/nvidiactl; trying again",
}


def _settle(waiters: Sequence[asyncio.Future[Inventory]], outcome: Inventory | Exception) -> None:
    for future in waiters:
        if future.done():
            continue
        if isinstance(outcome, Inventory):
            future.set_result(outcome)
        else:
            error = RecoverableError(f"look at the GPUs: {explain(outcome)}")
            error.__cause__ = outcome
            future.set_exception(error)
