"""Allocated claims for one driver on one node, as scheduler and kubelet would have left them.

They are written straight to the API server: who is measured reads them there.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from kubeapi.client import RESOURCE_CLAIMS, Json, KubeApi

NAMESPACE = "bench"
CREATE_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where the claims' devices are. The last device is kept for ``Claims.make(holders=True)``."""

    driver: str
    node: str
    pool: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """One pod's claim of one device."""

    uid: str
    name: str
    pod: str


class Claims:
    """Numbered through, so that no name comes twice."""

    def __init__(self, api: KubeApi, place: Place) -> None:
        self.place = place
        self._api = api
        self._numbers = 0

    async def make(self, count: int, *, holders: bool = False) -> list[Claim]:
        """Of the devices in turn.

        ``holders`` are for those that are held all the time: of the last device, which the others leave alone so that
        no measured claim has sharers to ask for, and with admin access: in nobody's way but prepared like any other,
        so that a node of eight GPUs can have hundreds.
        """
        devices = self.place.devices[-1:] if holders else self.place.devices[:-1]
        return await self._make(count, devices, holders)

    async def make_for_all(self) -> list[Claim]:
        """One for each device."""
        return await self._make(len(self.place.devices), self.place.devices, False)

    async def delete(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            await self._api.delete(RESOURCE_CLAIMS, claim.name, namespace=NAMESPACE)

    async def get(self, claim: Claim) -> float:
        """What the API server itself needs, in ms."""
        begun = time.perf_counter()
        await self._api.get(RESOURCE_CLAIMS, claim.name, namespace=NAMESPACE)
        return (time.perf_counter() - begun) * 1000

    async def _make(self, count: int, devices: Sequence[str], admin: bool) -> list[Claim]:
        turn, first = asyncio.Semaphore(CREATE_AT_ONCE), self._numbers
        self._numbers += count

        async def make(number: int) -> Claim:
            async with turn:
                name = f"{self.place.node}-{first + number}"
                return await self._create(name, devices[number % len(devices)], admin)

        return await asyncio.gather(*(make(number) for number in range(count)))

    async def _create(self, name: str, device: str, admin: bool) -> Claim:
        exactly = {"deviceClassName": self.place.driver, **({"adminAccess": True} if admin else {})}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        claim = {"metadata": {"name": name}, "spec": spec}
        body = await self._api.create(RESOURCE_CLAIMS, claim, namespace=NAMESPACE)
        pod = str(uuid.uuid4())
        status = self._status(device, pod, admin)
        await self._api.merge_patch(
            RESOURCE_CLAIMS, name, {"status": status}, namespace=NAMESPACE, subresource="status"
        )
        return Claim(body["metadata"]["uid"], name, pod)

    def _status(self, device: str, pod: str, admin: bool) -> Json:
        place = self.place
        result: Json = {"request": "gpu", "driver": place.driver, "pool": place.pool, "device": device}
        if admin:
            result |= {"adminAccess": True}
        field = {"key": "metadata.name", "operator": "In", "values": [place.node]}
        return {
            "allocation": {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            },
            "reservedFor": [{"resource": "pods", "name": f"pod-{pod}", "uid": pod}],
        }
