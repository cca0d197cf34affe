"""The part of a kubelet that looks after pods: it has their claims prepared, starts them, and ends them.

As in the real one (1.36): a pod is looked at when it comes, when its object changes in anything but its status, and
once a resync; a Prepare that failed is tried again at the next of these and not before. It reads each claim itself
before it asks a plugin, and that read may be refused (``refuse_reads``), as the node authorizer does in a burst.
Containers are a status that says so.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from gpuclaim.demo.kubelet import FakeKubelet, PodClaim, PodError
from kubeapi.client import PODS, RESOURCE_CLAIMS, Json, KubeApi
from kubeapi.errors import ApiError, Forbidden
from kubeapi.reflector import Change, Reflector
from kubeletplugin.clock import Clock

log = logging.getLogger(__name__)

RESYNC_SECONDS = 60.0
_NO_RELATION = "no relationship found between node and this object"


@dataclass(slots=True)
class _Worker:
    """``woken``: the object changed, or the pod is to end."""

    body: Json
    task: "asyncio.Task[None] | None" = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False


class FakePods:
    """``failures`` has the text of each failed try, as the pod's event would, by the pod's name."""

    def __init__(self, kubelet: FakeKubelet, api: KubeApi, node_name: str, clock: Clock) -> None:
        self._kubelet = kubelet
        self._api = api
        self._clock = clock
        self._reflector = Reflector(api, PODS, clock=clock, field_selector=f"spec.nodeName={node_name}")
        self._workers: dict[str, _Worker] = {}
        self.failures: dict[str, list[str]] = {}
        self.refuse_reads: dict[str, int] = {}
        """How often a claim of this name may not be read yet."""

    async def run(self) -> None:
        """Until cancelled."""
        leave = self._reflector.subscribe(self._tell)
        try:
            await self._reflector.run()
        finally:
            leave()
            tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._workers = {}

    def _tell(self, change: Change) -> None:
        uid = change.object["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is None and change.type != "DELETED":
            self._workers[uid] = worker = _Worker(change.object)
            worker.task = asyncio.create_task(self._look_after(worker), name=f"pod {uid}")
        elif worker is not None:
            worker.gone = change.type == "DELETED"
            if worker.gone or _desired(change.object) != _desired(worker.body):
                worker.woken.set()
            worker.body = change.object

    async def _look_after(self, worker: _Worker) -> None:
        metadata = worker.body["metadata"]
        while not worker.gone:
            worker.woken.clear()
            try:
                await self._start(worker.body)
                break
            except (PodError, ApiError) as error:
                self.failures.setdefault(metadata["name"], []).append(str(error))
            await self._until_woken(worker)
        while not worker.gone:
            await worker.woken.wait()
            worker.woken.clear()
        await self._end(metadata["uid"])

    async def _until_woken(self, worker: _Worker) -> None:
        waits: set[asyncio.Future[object]] = {
            asyncio.ensure_future(worker.woken.wait()),
            asyncio.ensure_future(self._clock.sleep(RESYNC_SECONDS)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _start(self, body: Json) -> None:
        """Raises PodError, ApiError."""
        metadata = body["metadata"]
        claims = [await self._read(metadata, entry["resourceClaimName"]) for entry in body["spec"]["resourceClaims"]]
        await self._kubelet.prepare(metadata["uid"], claims)
        running = {"name": "c", "state": {"running": {}}}
        status = {"status": {"phase": "Running", "containerStatuses": [running]}}
        await self._api.merge_patch(
            PODS, metadata["name"], status, namespace=metadata["namespace"], subresource="status"
        )

    async def _read(self, metadata: Json, name: str) -> PodClaim:
        if self.refuse_reads.get(name, 0) > 0:
            self.refuse_reads[name] -= 1
            raise Forbidden(403, "Forbidden", f"claim {name}: {_NO_RELATION}")
        claim = await self._api.get(RESOURCE_CLAIMS, name, namespace=metadata["namespace"])
        results = claim["status"]["allocation"]["devices"]["results"]
        drivers = tuple(dict.fromkeys(result["driver"] for result in results))
        return PodClaim(claim["metadata"]["uid"], metadata["namespace"], name, drivers)

    async def _end(self, uid: str) -> None:
        held = [info for info in self._kubelet.claims.claims.values() if uid in info.pods]
        claims = [PodClaim(info.uid, info.namespace, info.name, tuple(info.drivers)) for info in held]
        while True:
            try:
                await self._kubelet.unprepare(uid, claims)
                return
            except PodError as error:
                log.info("unprepare claims of pod %s: %s", uid, error)
            await self._clock.sleep(RESYNC_SECONDS)


def _desired(body: Json) -> Json:
    metadata = {key: body["metadata"].get(key) for key in ("labels", "annotations", "deletionTimestamp")}
    return {"metadata": metadata, "spec": body.get("spec")}
