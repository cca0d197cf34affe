"""The node's inventory over time: what the rest of the agent reads and follows.

- Until a first look succeeds there is no inventory, so a driver that comes late never means an empty pool. The look is
  tried again with back-off for ever; each new reason is reported once.
- Then the node is looked at every RESCAN_SECONDS (unless told otherwise), and at once on ``refresh()``. A changed MIG
  layout, a GPU added or gone, a reloaded driver are all just a different look.
- A driver that doesn't answer for the node changes nothing but ``answered`` (nothing did). After DRIVER_GONE_SECONDS of
  that it isn't slow but gone, and what nobody refers to is withdrawn, so that pods go to nodes that can serve them.
- Names come through the bindings while this instance has them (the active one), plain otherwise. A device that someone
  refers to stays, by its UUID, with its ``problem`` (see ``retention``). While the bindings can't be had, devices keep
  the names they have, newcomers wait, and what was seen of the hardware counts all the same.
- Device nodes are kept by the active instance only, and never hold up the looks.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kubeletplugin.clock import Clock
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.inventory import naming, retention
from kubeletplugin.inventory.aside import Aside
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

NODES_SECONDS = 5.0
"""More than a /dev that answers needs."""

BINDING_TRIES = 3
"""A claim may take a name between reading the bindings and writing them; it doesn't do so often."""


class DriverNotReadyError(RecoverableError):
    """The driver answers, but without the GPUs that should be there."""


@dataclass(slots=True)
class _Failure:
    """``cause`` is what stays the same while the trouble lasts: which call meets it first differs from look to look."""

    what: str
    cause: object
    text: str
    since: float
    count: int = 1


_LOOK = "look at the GPUs"
_BIND = "bind device names"


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
        the sound devices after each successful one while there are bindings, in a thread."""
        self._prober = prober
        self._session = session
        self._clock = clock
        self._exclusions = exclusions
        self._last_exclusions: Sequence[Exclusion] = ()
        self._ensure_nodes = ensure_nodes
        self._nodes_work = Aside("device nodes")
        self._nodes_trouble = ""
        self._rescan_seconds = rescan_seconds
        self._bindings: NameBindings | None = None
        self._looks: Latest[Inventory] = Latest()
        self._changes: Latest[Inventory] = Latest()
        self._problems: Latest[str] = Latest()
        self._known: dict[str, WithheldGpu] = {}
        self._failure: _Failure | None = None
        self._waiters: list[asyncio.Future[Inventory]] = []
        self._wanted = asyncio.Event()
        self._ended = False

    # --- asking ---
    @property
    def current(self) -> Inventory | None:
        """As of the last look; None before the first that succeeded."""
        return self._looks.value

    @property
    def problem(self) -> str:
        """Why the last look failed, or its devices couldn't be named; empty when all went well."""
        if self._failure is None:
            return ""
        return self._failure.text if self._failure.what == _LOOK else f"{self._failure.what}: {self._failure.text}"

    def problems(self) -> AsyncIterator[str]:
        """``problem``, and the newest one whenever it has changed."""
        return self._problems.follow()

    def changes(self) -> AsyncIterator[Inventory]:
        """The inventory, and the newest one whenever what it says of devices differs."""
        return self._changes.follow()

    def looks(self) -> AsyncIterator[Inventory]:
        """The inventory after every look, changed or not: for health, which also wants to know that nothing did."""
        return self._looks.follow()

    async def refresh(self) -> Inventory:
        """The outcome of a look that begins after this call. Raises RecoverableError when it fails, when its devices
        can't be named, and when there is none any more."""
        if self._ended:
            raise _no_more_looks()
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
            self._ended = True
            _settle(self._waiters, _no_more_looks())
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
        outcome: Inventory | RecoverableError = _no_more_looks()
        try:
            outcome = await self._outcome()
            if self._problems.value != self.problem:
                self._problems.set(self.problem)
        finally:
            _settle(waiters, outcome)

    async def _outcome(self) -> Inventory | RecoverableError:
        try:
            look = await self._look()
        except Exception as error:
            return await self._failed(error)
        try:
            inventory = await self._bound(look)
        except Exception as error:
            failure = self._note(_BIND, error)
            if self.current is not None:
                self._publish(_under_last_names(look, self.current))
            return failure
        if self._failure is not None:
            log.info("%s: it works again: %d devices", self._failure.what, len(inventory.devices))
            self._failure = None
        await self._keep_nodes(inventory)
        self._publish(inventory)
        return inventory

    async def _look(self) -> Inventory:
        """Under plain names."""
        look = await self._probe()
        if why := self._session.why_renew(self._causes(look)):
            log.info("begin the NVML session anew: %s", why)
            if await self._session.renew():
                look = await self._prober.look(self._excluded())
        self._require_gpus(look)
        return retention.with_gone(look.inventory, self._remember(look), self._known)

    async def _probe(self) -> Look:
        """Through a new session when the driver was reloaded under the old one."""
        begun = self._session.generation
        await self._session.ensure()
        try:
            return await self._prober.look(self._excluded())
        except NvmlError as error:
            if error.code not in SESSION_LOST or self._session.generation != begun:
                raise
            log.info("begin the NVML session anew: %s", error)
            if not await self._session.renew():
                raise
        return await self._prober.look(self._excluded())

    def _excluded(self) -> Sequence[Exclusion]:
        """As of the last time that they could be had."""
        try:
            self._last_exclusions = tuple(self._exclusions())
        except Exception:
            log.exception("read which GPUs are excluded; going on with what was read before")
        return self._last_exclusions

    def _causes(self, look: Look) -> Mapping[str, str]:
        """Why a new session may help, by what stays the same while it lasts."""
        listed = {gpu.identity.uuid for gpu in look.gpus}
        missing = () if "" in listed else sorted((self._known.keys() - listed) | frozenset(look.unseen))
        return {**look.renewal, **{f"{gpu} isn't listed": f"NVML doesn't list {gpu}" for gpu in missing}}

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
            named = tuple(replace(device, name=assigned.names[device.uuid]) for device in look.devices)
            return retention.with_held(replace(look, devices=named), self.current, _held(bound, referenced))
        raise RecoverableError("claims took names faster than they could be written")

    async def _failed(self, error: Exception) -> RecoverableError:
        failure = self._note(_LOOK, error)
        # A driver that hangs would hang in the shutdown too.
        if isinstance(error, NvmlError | DriverNotReadyError) and not isinstance(error, NvmlTimeoutError):
            await self._session.end()
        if self.current is not None:
            await self._without_answers(self.current)
        return failure

    def _note(self, what: str, error: Exception) -> RecoverableError:
        """Takes note that ``what`` failed, and says so once for each new reason."""
        text = explain(error)
        cause = error.code if isinstance(error, NvmlError) else text
        if self._failure is None or (self._failure.what, self._failure.cause) != (what, cause):
            # One odd answer of a driver, or of a disk, must not end the looking; but then a person has to see where.
            odd = not isinstance(error, NvmlError | RecoverableError)
            log.warning("%s: %s", what, text, exc_info=error if odd else None)
        if self._failure is None or self._failure.what != what:
            self._failure = _Failure(what, cause, text, self._clock.monotonic())
        else:
            if self._failure.cause != cause:
                self._failure.cause, self._failure.text = cause, text
            self._failure.count += 1
        failure = RecoverableError(f"{what}: {text}")
        failure.__cause__ = error
        return failure

    async def _without_answers(self, current: Inventory) -> None:
        assert self._failure is not None
        if self._clock.monotonic() - self._failure.since >= DRIVER_GONE_SECONDS:
            held = await self._still_held(current)
            self._publish(retention.withdrawn(current, held, self._known, self._failure.text))
        else:
            self._publish(replace(current, answered=frozenset()))

    async def _still_held(self, current: Inventory) -> Mapping[str, str]:
        """Name to UUID; everything, while nobody can say."""
        bindings = self._bindings
        if bindings is None:
            return {}
        try:
            return _held(await bindings.bindings(), await bindings.referenced_names())
        except Exception as error:
            log.debug("ask what is held: %s", error)
            return {device.name: device.uuid for device in current.devices}

    async def _keep_nodes(self, inventory: Inventory) -> None:
        if self._ensure_nodes is None or self._bindings is None:
            return
        minors = frozenset(device.minor for device in inventory.devices if not device.problem)
        trouble = ""
        try:
            await self._nodes_work.run(NODES_SECONDS, self._ensure_nodes, minors)
        except Exception as error:
            trouble = f"keep the driver's device nodes: {error}: look at the node's /dev"
            if trouble != self._nodes_trouble:
                log.warning("%s", trouble, exc_info=None if isinstance(error, TimeoutError) else error)
        self._nodes_trouble = trouble

    def _publish(self, inventory: Inventory) -> None:
        self._looks.set(inventory)
        published = self._changes.value
        if published is None or replace(inventory, answered=published.answered) != published:
            self._changes.set(inventory)


def _held(bound: Mapping[str, str], referenced: frozenset[str]) -> Mapping[str, str]:
    return {name: uuid for name, uuid in bound.items() if name in referenced}


def _under_last_names(look: Inventory, current: Inventory) -> Inventory:
    """What is new has no name that is safe to publish; what is missing may be in use."""
    names = {device.uuid: device.name for device in current.devices}
    named = tuple(replace(device, name=names[device.uuid]) for device in look.devices if device.uuid in names)
    held = {name: uuid for uuid, name in names.items()}
    return retention.with_held(replace(look, devices=named), current, held)


def _no_more_looks() -> RecoverableError:
    return RecoverableError(f"{_LOOK}: this agent is stopping")


def explain(error: Exception) -> str:
    """What a failed look means and what to do, for a log line, an Event and `gpuclaim status`."""
    code = error.code if isinstance(error, NvmlError) else None
    hint = _HINTS.get(code, _OTHER_HINT) if code is not None else None
    return f"{error}: {hint}" if hint else str(error)


_OTHER_HINT = "see the kernel log (NVRM) and what nvidia-smi says on the node; trying again"
_HINTS: dict[int, str] = {
    NvmlCode.LIBRARY_NOT_FOUND: "install the NVIDIA driver on the node, or name its root; trying again",
    NvmlCode.DRIVER_NOT_LOADED: "load the nvidia kernel module (nvidia-smi says why it isn't); trying again",
    NvmlCode.LIB_RM_VERSION_MISMATCH: "kernel module and library are of different versions: finish the driver's"
    " upgrade (reload the module or reboot); trying again",
    NvmlCode.TIMEOUT: "see the kernel log (NVRM); trying again",
    NvmlCode.NO_PERMISSION: "the agent needs access to /dev/nvidiactl; trying again",
}


def _settle(waiters: Sequence[asyncio.Future[Inventory]], outcome: Inventory | RecoverableError) -> None:
    for future in waiters:
        if future.done():
            continue
        if isinstance(outcome, Inventory):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
