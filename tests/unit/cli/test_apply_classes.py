"""`gpuclaim apply-classes`: against an API server, and where there is none or it refuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceclasses.catalogue import device_classes
from gpuclaim.demo.apiserver import FakeApiServer
from gpuclaim.demo.apiserver_errors import StatusError
from gpuclaim.demo.apiserver_faults import Fault
from gpuclaim.demo.stage import kubeconfig
from kubeapi.client import DEVICE_CLASSES
from tests.unit.cli.answer import Answer
from tests.unit.cli.conftest import Command

pytestmark = pytest.mark.anyio

NAMES = ["gpu.nvidia.com", "mig.nvidia.com"]
APPLIED = "".join(f"deviceclass.resource.k8s.io/{name} applied\n" for name in NAMES)
Apply = Callable[..., Awaitable[Answer]]


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
def config(server: FakeApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig(server.url)))
    return path


@pytest.fixture
def apply(gpuclaim: Command, config: Path) -> Apply:
    """In a thread, since the command runs a loop of its own."""

    async def run(*words: str) -> Answer:
        return await asyncio.to_thread(gpuclaim, "apply-classes", "--kubeconfig", str(config), *words)

    return run


def stored(server: FakeApiServer) -> dict[str, Any]:
    return {item["metadata"]["name"]: item["spec"] for item in server.objects(DEVICE_CLASSES)}


async def test_applies_them_and_again(server: FakeApiServer, apply: Apply) -> None:
    for _ in range(2):
        assert await apply() == Answer(0, APPLIED, "")
        assert stored(server) == {body["metadata"]["name"]: body["spec"] for body in device_classes()}
    assert list(stored(server)) == NAMES


async def test_a_class_that_was_changed_by_hand_is_put_right(server: FakeApiServer, apply: Apply) -> None:
    server.put(DEVICE_CLASSES, {"metadata": {"name": NAMES[0]}, "spec": {}})
    assert (await apply()).status == 0
    assert stored(server) == {body["metadata"]["name"]: body["spec"] for body in device_classes()}


async def test_kubeconfig_of_the_environment(gpuclaim: Command, config: Path, server: FakeApiServer) -> None:
    answer = await asyncio.to_thread(gpuclaim, "apply-classes", env={"KUBECONFIG": str(config)})
    assert answer == Answer(0, APPLIED, "")
    assert list(stored(server)) == NAMES


async def test_dry_run_prints_them_and_asks_nobody(server: FakeApiServer, apply: Apply) -> None:
    assert (await apply("--dry-run")).yaml() == device_classes()
    assert server.requests == {}


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (401, "; get new credentials for this cluster (or see --kubeconfig)"),
        (403, "; it takes the verbs create and patch on deviceclasses.resource.k8s.io, as a cluster's admin has"),
        (404, "; it takes Kubernetes 1.34 or newer with resource.k8s.io/v1 served"),
        (500, ""),
    ],
)
async def test_a_refusal_says_what_it_takes(server: FakeApiServer, apply: Apply, code: int, advice: str) -> None:
    server.faults.fail(code, times=2, resource="deviceclasses", message="refused")
    line = (await apply()).refusal()
    assert line.startswith(f"apply DeviceClass gpu.nvidia.com: refused ({code} ")
    assert line.endswith(f"){advice}")


async def test_what_was_applied_before_a_refusal_is_told(server: FakeApiServer, apply: Apply) -> None:
    class Later(Fault):
        def concerns(self, verb: str, resource: str) -> bool:
            return bool(stored(server))

    server.faults.active.append(Later(9, error=StatusError(403, "Forbidden", "refused")))
    answer = await apply()
    assert (answer.status, answer.out) == (1, "deviceclass.resource.k8s.io/gpu.nvidia.com applied\n")
    assert answer.err.startswith("gpuclaim: apply DeviceClass mig.nvidia.com: ")


async def test_a_server_that_is_not_there(server: FakeApiServer, apply: Apply) -> None:
    await server.stop()
    assert (await apply()).refusal() == (
        f"apply DeviceClass gpu.nvidia.com: reach API server {server.url}: connection refused;"
        " check the server's address in the kubeconfig, and the network"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "read kubeconfig {path}: no such file"),
        ("[", "read kubeconfig {path}: not YAML: "),
        ("a: b", "read kubeconfig {path}: "),
        ("just words", "read kubeconfig {path}: not a kubeconfig (no mapping at its top)"),
    ],
)
def test_a_bad_kubeconfig(gpuclaim: Command, tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "bad"
    if content is not None:
        path.write_text(content)
    assert gpuclaim("apply-classes", f"--kubeconfig={path}").refusal().startswith(message.format(path=path))


def test_no_kubeconfig_at_all(gpuclaim: Command) -> None:
    line = gpuclaim("apply-classes").refusal()
    assert line.startswith("find an API server: ")
    assert line.endswith("give one of them")
