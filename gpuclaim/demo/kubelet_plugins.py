"""The kubelet's plugin side: finds registration sockets, registers, connects, watches health.

Order and deadlines are the real kubelet's (1.36): GetInfo within 1 s, Notify within 5 s, a back-off per socket path, an
endpoint registers once, calls go to the newest plugin that is connected, health streams are opened again after 5 s and
the end of any one clears the driver's values. Sockets are found by looking instead of by inotify.
"""

import asyncio
import contextlib
import logging
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from kubeletplugin.clock import Clock
from kubeletplugin.pb.dra_health.v1alpha1 import api_pb2 as health_pb
from kubeletplugin.pb.dra_health.v1alpha1 import api_pb2_grpc as health_grpc
from kubeletplugin.pb.pluginregistration.v1 import api_pb2 as registration
from kubeletplugin.pb.pluginregistration.v1 import api_pb2_grpc as registration_grpc

log = logging.getLogger(__name__)

KNOWN_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


@dataclass(frozen=True, slots=True)
class KubeletTiming:
    """Seconds, as in the real one; ``look`` stands in for inotify and the reconciler's loop."""

    look: float = 0.05
    dial: float = 10.0
    get_info: float = 1.0
    notify: float = 5.0
    call: float = 45.0
    first_backoff: float = 0.5
    last_backoff: float = 122.0
    health_retry: float = 5.0
    wiping_delay: float = 30.0


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    state: str
    message: str
    last_updated: float
    timeout: float


@dataclass
class Plugin:
    """One registered instance."""

    driver: str
    endpoint: str
    service: str
    channel: grpc.aio.Channel
    connected: bool = False
    closed: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def close(self) -> None:
        self.closed = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.channel.close()


@dataclass
class Socket:
    """A registration socket in the folder; ``identity`` tells a re-created one."""

    identity: tuple[int, int]
    plugin: Plugin | None = None
    attempt: asyncio.Task[None] | None = None
    backoff: float = 0.0
    not_before: float = 0.0


class PluginManager:
    def __init__(
        self, registry: Path, clock: Clock, timing: KubeletTiming, connection_changed: Callable[[str], None]
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._timing = timing
        self._connection_changed = connection_changed
        self._sockets: dict[Path, Socket] = {}
        self._backoffs: dict[Path, float] = {}
        self._plugins: dict[str, list[Plugin]] = {}
        self._health: dict[str, dict[tuple[str, str], DeviceHealth]] = {}
        self.refuse = ""
        """When set, registrations are refused with this text."""

    def plugins(self, driver: str) -> tuple[Plugin, ...]:
        """In the order in which they registered."""
        return tuple(self._plugins.get(driver, ()))

    def usable(self, driver: str) -> bool:
        return any(plugin.connected for plugin in self.plugins(driver))

    def choose(self, driver: str) -> Plugin | None:
        """Whom a call goes to: the newest connected one, else the newest."""
        plugins = self._plugins.get(driver, [])
        candidates = [plugin for plugin in plugins if plugin.connected] or plugins
        return candidates[-1] if candidates else None

    def health(self, driver: str, pool: str, device: str) -> DeviceHealth | None:
        """The cached value, as long as it isn't stale."""
        value = self._health.get(driver, {}).get((pool, device))
        if value is None or self._clock.monotonic() - value.last_updated > value.timeout:
            return None
        return value

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(self._timing.look)

    async def look(self) -> None:
        """One pass of watcher and reconciler: first who is gone, then who is new."""
        seen = {path: socket_identity(path) for path in self._registry.rglob("*") if not path.name.startswith(".")}
        found = {path: identity for path, identity in seen.items() if identity is not None}
        for path, socket in list(self._sockets.items()):
            if found.get(path) != socket.identity:
                del self._sockets[path]
                await self._forget(socket)
        for path, identity in sorted(found.items()):
            socket = self._sockets.setdefault(path, Socket(identity, backoff=self._backoffs.get(path, 0.0)))
            busy = socket.plugin is not None or (socket.attempt is not None and not socket.attempt.done())
            if not busy and self._clock.monotonic() >= socket.not_before:
                socket.attempt = asyncio.create_task(self._try_to_register(path, socket), name=f"register {path.name}")

    async def close(self) -> None:
        for socket in self._sockets.values():
            await self._forget(socket)
        self._sockets.clear()

    async def _forget(self, socket: Socket) -> None:
        if socket.attempt is not None:
            socket.attempt.cancel()
            await asyncio.gather(socket.attempt, return_exceptions=True)
        if socket.plugin is not None:
            await self._deregister(socket.plugin)

    async def _try_to_register(self, path: Path, socket: Socket) -> None:
        try:
            socket.plugin = await self._register(path)
            self._backoffs.pop(path, None)
        except (RegistrationError, grpc.aio.AioRpcError, TimeoutError) as error:
            socket.backoff = min(max(socket.backoff * 2, self._timing.first_backoff), self._timing.last_backoff)
            socket.not_before = self._clock.monotonic() + socket.backoff
            self._backoffs[path] = socket.backoff
            log.warning("registration failed", extra={"socket": str(path), "error": str(error)})

    async def _register(self, path: Path) -> Plugin:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS) as channel:
            await asyncio.wait_for(channel.channel_ready(), self._timing.dial)
            stub = registration_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(registration.InfoRequest(), timeout=self._timing.get_info)
            try:
                plugin = self._add(info, path)
            except RegistrationError as error:
                await self._notify(stub, registered=False, error=str(error))
                raise
            try:
                await self._notify(stub, registered=True, error="")
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                await self._deregister(plugin)
                raise
            return plugin

    async def _notify(self, stub: registration_grpc.RegistrationStub, *, registered: bool, error: str) -> None:
        status = registration.RegistrationStatus(plugin_registered=registered, error=error)
        await stub.NotifyRegistrationStatus(status, timeout=self._timing.notify)

    def _add(self, info: registration.PluginInfo, path: Path) -> Plugin:
        endpoint = info.endpoint or str(path)
        service = next((name for name in info.supported_versions if name in KNOWN_SERVICES), None)
        if self.refuse:
            raise RegistrationError(f"RegisterPlugin error -- plugin validation failed with err: {self.refuse}")
        if info.type != "DRAPlugin":
            raise RegistrationError(f"RegisterPlugin error -- no handler registered for plugin type: {info.type}")
        if service is None:
            raise RegistrationError(f"none of services supported by the plugin ({list(info.supported_versions)}) known")
        if any(plugin.endpoint == endpoint for plugin in self.plugins(info.name)):
            raise RegistrationError(f"endpoint {endpoint} already registered for DRA driver plugin {info.name}")
        channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=CHANNEL_OPTIONS)
        plugin = Plugin(info.name, endpoint, service, channel)
        plugin.tasks = [
            asyncio.create_task(self._watch_connection(plugin), name=f"connection {endpoint}"),
            asyncio.create_task(self._watch_health(plugin), name=f"health {endpoint}"),
        ]
        self._plugins.setdefault(info.name, []).append(plugin)
        return plugin

    async def _deregister(self, plugin: Plugin) -> None:
        self._plugins[plugin.driver].remove(plugin)
        await plugin.close()
        plugin.connected = False
        self._connection_changed(plugin.driver)

    async def _watch_connection(self, plugin: Plugin) -> None:
        while True:
            state = plugin.channel.get_state(try_to_connect=True)
            connected = state is grpc.ChannelConnectivity.READY
            if connected is not plugin.connected:
                plugin.connected = connected
                self._connection_changed(plugin.driver)
            await plugin.channel.wait_for_state_change(state)

    async def _watch_health(self, plugin: Plugin) -> None:
        stub = health_grpc.DRAResourceHealthStub(plugin.channel)
        while True:
            try:
                async for report in stub.NodeWatchResources(health_pb.NodeWatchResourcesRequest()):
                    self._keep_health(plugin.driver, report)
            except grpc.aio.AioRpcError as error:
                log.debug("health stream ended", extra={"endpoint": plugin.endpoint, "error": error.details()})
            finally:
                self._health.pop(plugin.driver, None)
            await self._clock.sleep(self._timing.health_retry)

    def _keep_health(self, driver: str, report: health_pb.NodeWatchResourcesResponse) -> None:
        values = self._health.setdefault(driver, {})
        for item in report.devices:
            timeout = item.health_check_timeout_seconds
            values[item.device.pool_name, item.device.device_name] = DeviceHealth(
                state=health_pb.HealthStatus.Name(item.health).capitalize(),
                message=item.message,
                last_updated=self._clock.monotonic(),
                timeout=float(timeout) if timeout > 0 else 30.0,
            )


def socket_identity(path: Path) -> tuple[int, int] | None:
    """Inode and time of change: file systems give a freed inode number to the next file. None: no socket."""
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        return (status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None
    return None


class RegistrationError(Exception):
    """The kubelet's words to a plugin that it doesn't take."""
