"""Registers the plugin with the kubelet, and keeps it registered.

The kubelet watches its registry folder for sockets, asks GetInfo (1 s) and then calls NotifyRegistrationStatus (5 s).
So the registration server is one of its own whose answers are made beforehand; the socket is bound under a name with
a leading dot, which the kubelet ignores, and gets its public name once it answers. C-core unlinks only the name that
it bound, so the public one is unlinked here, and that is what deregisters.

A refusal is reported with the kubelet's own words and the socket is published again under back-off: only a created
file makes the kubelet ask again. So is a socket that is gone (somebody emptied the folder).
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc.aio

from kubeletplugin import crashpoints
from kubeletplugin.clock import Clock
from kubeletplugin.dra.sockets import SocketPaths, is_socket, stamp, target
from kubeletplugin.errors import FatalError
from kubeletplugin.pb.pluginregistration.v1 import api_pb2, api_pb2_grpc

log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"
SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""In this order: the kubelet takes the first DRAPlugin that it knows."""

Context = grpc.aio.ServicerContext[Any, Any]


class RegistrationListener(Protocol):
    """Told on the event loop; must return at once and never raise."""

    def on_registered(self) -> None:
        """The kubelet has confirmed: from now on it calls this instance."""

    def on_refused(self, error: str) -> None:
        """``error`` is the kubelet's text."""

    def on_unpublished(self) -> None:
        """The socket isn't there any more, so the kubelet has forgotten this instance or soon will."""


@dataclass(frozen=True, slots=True)
class RegistrarTiming:
    """Seconds. The kubelet's own back-off per socket path runs from 0.5 s to 2 min, so ours needs no finer steps."""

    look: float = 1.0
    silence: float = 60.0
    first_retry: float = 5.0
    last_retry: float = 120.0


class RegistrationService(api_pb2_grpc.RegistrationServicer):
    """Answers at once, whatever the rest of the agent does; an error answer to a success would deregister."""

    def __init__(self, info: api_pb2.PluginInfo, told: Callable[[bool, str], None]) -> None:
        self._info = info
        self._told = told
        self.asked = False

    async def GetInfo(self, request: api_pb2.InfoRequest, context: Context) -> api_pb2.PluginInfo:
        self.asked = True
        return self._info

    async def NotifyRegistrationStatus(
        self, request: api_pb2.RegistrationStatus, context: Context
    ) -> api_pb2.RegistrationStatusResponse:
        try:
            self._told(request.plugin_registered, request.error)
        except Exception:
            log.exception("registration listener failed")
        return api_pb2.RegistrationStatusResponse()


class Registrar:
    """Publishes the registration socket from ``start`` to ``stop``."""

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        listener: RegistrationListener,
        *,
        clock: Clock,
        timing: RegistrarTiming | None = None,
    ) -> None:
        self._paths = paths
        self._listener = listener
        self._clock = clock
        self._timing = timing or RegistrarTiming()
        self._info = api_pb2.PluginInfo(
            type=PLUGIN_TYPE, name=driver, endpoint=str(paths.dra), supported_versions=SUPPORTED_VERSIONS
        )
        self._server: grpc.aio.Server | None = None
        self._service: RegistrationService | None = None
        self._watch: asyncio.Task[None] | None = None
        self._wait_first = False
        self._renewal = False
        self._confirmed = asyncio.Event()
        self._published_at = 0.0
        self._silence_told = False
        self._retry = self._timing.first_retry

    async def start(self) -> None:
        registry = self._paths.registration.parent
        if not registry.is_dir():
            raise FatalError(
                f"register with the kubelet: there is no folder {registry}; check --kubelet-root-dir and that the"
                " pod mounts it from the host at the same path"
            )
        try:
            await self._publish()
        except (OSError, RuntimeError) as error:
            raise FatalError(f"make the registration socket in {registry}: {error}; is it mounted writable?") from error
        self._published_at = self._clock.monotonic()
        self._watch = asyncio.create_task(self._keep_published(), name="registration watch")

    async def renew(self) -> None:
        """Has the kubelet register this instance anew, which makes it the newest; it is forgotten for a second or two,
        and calls that are open at it are broken off. Returns when the kubelet has confirmed it."""
        self._renewal = True
        self._confirmed.clear()
        await self._confirmed.wait()

    async def stop(self) -> None:
        """Removes the socket (the kubelet deregisters within a second or two), then stops the server."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await self._unpublish()

    async def _publish(self) -> None:
        self._wait_first = False
        service = RegistrationService(self._info, self._told)
        server = grpc.aio.server()
        api_pb2_grpc.add_RegistrationServicer_to_server(service, server)
        try:
            self._paths.hidden.unlink(missing_ok=True)
            server.add_insecure_port(target(self._paths.hidden))
            await server.start()
            crashpoints.reached("register.bound")
            stamp(self._paths.hidden)
            self._paths.hidden.rename(self._paths.registration)
            crashpoints.reached("register.published")
        except BaseException:
            await server.stop(grace=None)
            raise
        self._server, self._service = server, service
        log.info("registration socket published", extra={"socket": str(self._paths.registration)})

    async def _unpublish(self) -> None:
        try:
            self._paths.registration.unlink(missing_ok=True)
        except OSError as error:
            log.warning("remove the registration socket", extra={"error": str(error)})
        server, self._server, self._service = self._server, None, None
        if server is not None:
            await server.stop(grace=0.5)

    def _told(self, registered: bool, error: str) -> None:
        if registered:
            self._retry, self._wait_first = self._timing.first_retry, False
            if not self._renewal:
                self._confirmed.set()
            log.info("registered with the kubelet")
            self._listener.on_registered()
            return
        log.error("kubelet refused the registration", extra={"error": error})
        self._wait_first = True
        self._listener.on_refused(error)

    async def _keep_published(self) -> None:
        while True:
            await self._clock.sleep(self._timing.look)
            try:
                await self._look()
            except Exception:
                log.exception("look at the registration socket")

    async def _look(self) -> None:
        self._report_silence()
        if self._wait_first:
            if not await self._still_refused():
                return
        elif self._renewal:
            self._renewal = False
            self._listener.on_unpublished()
        elif is_socket(self._paths.registration):
            return
        else:
            log.warning("registration socket is gone", extra={"socket": str(self._paths.registration)})
            self._listener.on_unpublished()
        await self._publish_again()

    def _report_silence(self) -> None:
        """Once for each time that the socket was published."""
        if self._silence_told or self._clock.monotonic() - self._published_at < self._timing.silence:
            return
        self._silence_told = True
        if self._service is not None and not self._service.asked:
            log.warning(
                "the kubelet hasn't asked about the registration socket: is it running, and is this its folder?",
                extra={"socket": str(self._paths.registration)},
            )

    async def _publish_again(self) -> None:
        self._published_at, self._silence_told = self._clock.monotonic(), False
        try:
            await self._unpublish()
            await self._publish()
        except (OSError, RuntimeError) as error:
            self._wait_first = True
            log.error(
                "publish the registration socket; will be tried again",
                extra={"socket": str(self._paths.registration), "error": str(error)},
            )

    async def _still_refused(self) -> bool:
        """After the back-off: a restarted kubelet asks all sockets again, and may be content by then."""
        await self._clock.sleep(self._next_retry())
        return self._wait_first

    def _next_retry(self) -> float:
        delay = self._retry
        self._retry = min(self._retry * 2, self._timing.last_retry)
        return delay * random.uniform(0.8, 1.2)
