"""An API server in memory, over real HTTP on a loopback port: for the demo, and for tests of what talks to one.

Behaves like Kubernetes 1.36 in what a DRA driver can notice: versions, conflicts, watches with bookmarks and 410,
paged lists, generated names, dry runs, server-side apply, fields that a gate drops, and the words in which a
ResourceSlice is refused. What it leaves out is said in the modules beside this one. Not for production, and open to
every process of this machine.
"""

import asyncio
import copy
import datetime
import random
import ssl
from collections import Counter
from collections.abc import Callable, Mapping

from aiohttp import web

from gpuclaim.demo.apiserver_errors import Json, StatusError
from gpuclaim.demo.apiserver_faults import Faults
from gpuclaim.demo.apiserver_gates import DEFAULT_GATES
from gpuclaim.demo.apiserver_http import Handler
from gpuclaim.demo.apiserver_objects import fill_defaults
from gpuclaim.demo.apiserver_registry import Registry, Target
from gpuclaim.demo.apiserver_store import Store
from kubeapi.client import Resource


class FakeApiServer:
    """``async with FakeApiServer() as server:`` serves on ``server.url`` until the end of the block.

    ``faults`` and ``gates`` may be changed at any time. The methods that take a Resource reach into the store
    directly, as an administrator beside all rules would: they make no request that is counted or refused.
    """

    def __init__(
        self,
        *,
        gates: Mapping[str, bool] | None = None,
        port: int = 0,
        bookmark_interval: float = 60.0,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        seed: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``gates``: differences from Kubernetes 1.36's defaults. ``bookmark_interval``: seconds. ``seed``: makes
        uids and generated names the same every time. ``tls``: serve https with this certificate."""
        self.gates = {**DEFAULT_GATES, **(gates or {})}
        self.faults = Faults()
        self._store = Store()
        self._now = now
        self._registry = Registry(self._store, self.gates, now, random.Random(seed))
        self._handler = Handler(self._store, self._registry, self.faults, bookmark_interval)
        self._host, self._port, self._tls = "127.0.0.1", port, tls
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeApiServer":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Valid once started; stays the same when the server goes away and comes back."""
        return f"{'https' if self._tls is not None else 'http'}://{self._host}:{self._port}"

    @property
    def requests(self) -> Counter[tuple[str, str]]:
        return self.faults.requests

    @property
    def open_watches(self) -> Counter[str]:
        """Plural to the number of watches that are open now."""
        return +self._handler.open_watches

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns once ``condition`` holds; looked at whenever a request comes in or a watch opens or ends."""
        while not condition():
            self.faults.activity.clear()
            await self.faults.activity.wait()

    async def start(self) -> None:
        application = web.Application(client_max_size=8 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", self._handler.handle)
        self._runner = web.AppRunner(
            application, access_log=None, handle_signals=False, handler_cancellation=True, shutdown_timeout=0.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, reuse_address=True, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuses connections and cuts the open ones; what is stored stays. ``start`` brings it back."""
        if self._runner is not None:
            self.cut_connections()
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def cut_connections(self) -> None:
        """Every connection breaks off in the middle of whatever it does."""
        server = self._runner.server if self._runner is not None else None
        for connection in list(server.connections) if server is not None else ():
            transport = connection.transport
            if isinstance(transport, asyncio.Transport):
                transport.abort()

    def cut_watches(self) -> None:
        """Every open watch breaks off in the middle; other connections live on."""
        self._handler.cut_watches()

    def end_watches(self) -> None:
        """Every open watch ends in good order, as at its time limit."""
        self._handler.end_watches()

    def send_bookmarks(self) -> None:
        self._handler.send_bookmarks()

    def compact(self) -> None:
        """Watches from before now, and lists begun before now, get 410. Open watches go on."""
        self._store.compact()

    def lose_events(self, resource: Resource, count: int = 1) -> None:
        """The next ``count`` changes of a resource are told to no watch."""
        self._store.collection(resource.group, resource.plural).lose_next += count

    def objects(self, resource: Resource, namespace: str = "") -> list[Json]:
        return copy.deepcopy(self._store.collection(resource.group, resource.plural).bodies(namespace))

    def object(self, resource: Resource, name: str, namespace: str = "") -> Json:
        """KeyError when it isn't there."""
        return copy.deepcopy(self._store.collection(resource.group, resource.plural).objects[namespace, name])

    def put(self, resource: Resource, body: Json) -> Json:
        """Stores an object as it is, status included, over what was there; the stored object is returned."""
        new = copy.deepcopy({**body, "apiVersion": resource.api_version, "kind": resource.kind})
        if resource.namespaced:
            new["metadata"].setdefault("namespace", "default")
        key = (new["metadata"].get("namespace", ""), new["metadata"]["name"])
        collection = self._store.collection(resource.group, resource.plural)
        old = collection.objects.get(key)
        kept = old["metadata"] if old is not None else self._registry.new_metadata()
        new["metadata"] = {**kept, **new["metadata"]}
        fill_defaults(new, self._now())
        return copy.deepcopy(self._store.write(collection, key, new))

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        """KeyError when it isn't there."""
        try:
            self._registry.delete(_target(resource, name, namespace), {})
        except StatusError as e:
            raise KeyError(name) from e


def _target(resource: Resource, name: str, namespace: str) -> Target:
    return Target(resource.group, resource.version, resource.plural, resource.kind, namespace, name)
