"""API server and NVML as the agent finds them, as numbers."""

import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any, cast

import pytest

from kubeapi.client import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, KubeApi, Resource, WatchEvent
from kubeapi.errors import ApiError, Gone, Invalid, NotFound, Unreachable
from kubeletplugin.app.metrics.api import CountedApi
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.metrics.nvml import counted
from kubeletplugin.nvml.api import Nvml
from kubeletplugin.nvml.errors import NvmlCode, NvmlError, NvmlTimeoutError
from kubeletplugin.nvml.worker import NvmlWorkers
from tests.unit.app.metrics.exposition import scraped

pytestmark = pytest.mark.anyio


class Server:
    """Answers each call with its arguments, or with ``error``."""

    def __init__(self) -> None:
        self.error: ApiError | None = None

    def __getattr__(self, verb: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.error is not None:
                raise self.error
            return verb, args, kwargs

        return call

    async def watch(self, resource: Resource, **kwargs: Any) -> AsyncIterator[WatchEvent]:
        yield WatchEvent("ADDED", {"kwargs": kwargs})
        if self.error is not None:
            raise self.error


class Client:
    def __init__(self) -> None:
        self.server, self.metrics = Server(), Metrics()
        self.api: KubeApi = CountedApi(cast("KubeApi", self.server), self.metrics)

    async def use_all(self) -> list[Any]:
        api, body = self.api, {"metadata": {"resourceVersion": "1"}}
        calls: list[Coroutine[Any, Any, Any]] = [
            api.get(RESOURCE_CLAIMS, "a", namespace="ns"),
            api.list(PODS, namespace="ns", field_selector="f", label_selector="l", resource_version="1", limit=2),
            api.create(RESOURCE_SLICES, body, dry_run=True),
            api.replace(RESOURCE_SLICES, "a", body, dry_run=True),
            api.delete(RESOURCE_SLICES, "a", uid="u", resource_version="1"),
            api.apply(RESOURCE_CLAIMS, "a", body, namespace="ns", field_manager="m", force=False, subresource="status"),
            api.merge_patch(PODS, "a", body, namespace="ns", subresource="status"),
        ]
        found: list[Any] = []
        for call in calls:
            try:
                found.append(await call)
            except ApiError:
                found.append(None)
        return found


ALL = {
    ("get", "resourceclaims"),
    ("list", "pods"),
    ("create", "resourceslices"),
    ("update", "resourceslices"),
    ("delete", "resourceslices"),
    ("apply", "resourceclaims/status"),
    ("patch", "pods/status"),
}


async def test_requests_are_passed_on_whole_and_timed() -> None:
    client = Client()
    get, listed, created, replaced, _, applied, patched = await client.use_all()
    assert get == ("get", (RESOURCE_CLAIMS, "a"), {"namespace": "ns"})
    assert listed[2] == {
        "namespace": "ns",
        "field_selector": "f",
        "label_selector": "l",
        "resource_version": "1",
        "limit": 2,
        "continue_token": "",
    }
    assert created[2] == {"namespace": "", "dry_run": True}
    assert replaced[2] == {"namespace": "", "dry_run": True}
    assert applied[2] == {
        "namespace": "ns",
        "field_manager": "m",
        "force": False,
        "subresource": "status",
        "dry_run": False,
    }
    assert patched[2] == {"namespace": "ns", "subresource": "status"}
    seen = scraped(client.metrics.registry)
    counts = seen.series("gpuclaim_api_request_duration_seconds_count", "verb", "resource")
    assert counts == dict.fromkeys(ALL, 1)
    assert seen.series("gpuclaim_api_errors_total", "verb") == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [(NotFound(404, "NotFound", "no"), "404"), (Unreachable("refused"), "0"), (Invalid(422, "Invalid", "no"), "422")],
)
async def test_errors_are_counted_by_code_and_not_timed(error: ApiError, code: str) -> None:
    client = Client()
    client.server.error = error
    assert await client.use_all() == [None] * 7
    seen = scraped(client.metrics.registry)
    assert seen.series("gpuclaim_api_errors_total", "verb", "resource", "code") == {(*it, code): 1 for it in ALL}
    assert seen.series("gpuclaim_api_request_duration_seconds_count", "verb") == {}


async def test_a_watch_that_breaks_is_counted() -> None:
    client = Client()
    client.server.error = Gone(410, "Gone", "too old")
    events = client.api.watch(PODS, resource_version="1", field_selector="f", timeout_seconds=3)
    first = await anext(events)
    assert first.object["kwargs"]["field_selector"] == "f"
    with pytest.raises(Gone):
        await anext(events)
    seen = scraped(client.metrics.registry)
    assert seen.series("gpuclaim_api_errors_total", "verb", "resource", "code") == {("watch", "pods", "410"): 1}


class Driver:
    """The part of Nvml that is called here."""

    def __init__(self) -> None:
        self.code: int = NvmlCode.SUCCESS

    def device_count(self) -> int:
        if self.code != NvmlCode.SUCCESS:
            raise NvmlError(self.code, "nvmlDeviceGetCount_v2")
        return 8


@pytest.mark.parametrize(
    ("code", "counts"),
    [
        (NvmlCode.GPU_IS_LOST, {("device_count", "GPU_IS_LOST"): 1}),
        (NvmlCode.UNKNOWN, {("device_count", "UNKNOWN"): 1}),
        (12345, {("device_count", "12345"): 1}),
        (NvmlCode.NOT_SUPPORTED, {}),
        (NvmlCode.NOT_FOUND, {}),
    ],
)
async def test_nvml_errors_are_counted_unless_they_are_answers(code: int, counts: dict[tuple[str, str], int]) -> None:
    driver, metrics = Driver(), Metrics()
    nvml = counted(cast("Nvml", driver), metrics)
    assert nvml.device_count() == 8
    assert nvml.device_count.__name__ == "device_count"
    driver.code = code
    with pytest.raises(NvmlError):
        nvml.device_count()
    assert scraped(metrics.registry).series("gpuclaim_nvml_errors_total", "call", "code") == counts


async def test_calls_that_are_given_up_are_counted_by_gpu() -> None:
    metrics, release = Metrics(), threading.Event()
    workers = NvmlWorkers(0.01, on_timeout=metrics.nvml_timed_out)
    for _ in range(2):  # the second isn't even made
        with pytest.raises(NvmlTimeoutError):
            await workers.call("GPU-1", release.wait)
    await workers.call("GPU-2", lambda: None, timeout=5.0)
    release.set()
    workers.close()
    assert scraped(metrics.registry).series("gpuclaim_nvml_timeouts_total", "gpu") == {("GPU-1",): 2}
