"""Damage to a node under running pods: ledger, CDI folder and plugin folder lost, and a node set up anew."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.nvml.simulated import SimulatedNode
from tests.cluster.cgroups import processes, processes_of
from tests.cluster.harness.agent import Agent
from tests.cluster.harness.node import KUBELET_ROOT
from tests.cluster.harness.processes import until
from tests.cluster.objects import claim, container, pod, template
from tests.cluster.world import World

CDI = Path("/var/run/cdi")
PLUGIN = KUBELET_ROOT / "plugins" / "gpu.nvidia.com"


def uid_of(world: World, name: str) -> str:
    uid: str = world.kubectl.json("get", "pod", name, "-n", world.namespace)["metadata"]["uid"]
    return uid


def holders(agent: Agent) -> dict[str, list[str]]:
    """Namespaced names of claims by device, of what is held."""
    devices: list[dict[str, Any]] = json.loads(agent.status())["devices"]
    return {entry["name"]: [it["name"] for it in entry["holders"]] for entry in devices if entry["holders"]}


def remove_ledger() -> None:
    for path in PLUGIN.glob("ledger.db*"):
        path.unlink()


def remove_plugin_folder() -> None:
    shutil.rmtree(PLUGIN)


@pytest.mark.parametrize("loss", [remove_ledger, remove_plugin_folder])
@pytest.mark.parametrize("under_an_agent", [False, True], ids=["while it is down", "under the agent"])
def test_what_the_agent_knew_is_lost(
    agent: Agent, world: World, loss: Callable[[], None], under_an_agent: bool
) -> None:
    """Running pods notice nothing, nobody gets their GPU, and it is free when they have ended."""
    world.create(claim("held"), template("one"), pod("before", claim_name="held"))
    world.running("before")
    before = holders(agent)
    if under_an_agent:
        loss()
        time.sleep(1)
    agent.kill()
    if not under_an_agent:
        loss()
    agent.start()
    assert holders(agent) == before
    world.create(pod("after", template_name="one"), pod("joins", claim_name="held"))
    world.running("after", "joins")
    assert not world.gpu_nodes("after") & world.gpu_nodes("before")
    assert world.gpu_nodes("joins") == world.gpu_nodes("before") != set()
    assert world.restarts("before") == 0
    world.delete("pod/before", "pod/after", "pod/joins")
    world.kubectl.wait("every GPU free", lambda: holders(agent) == {}, seconds=60)


def test_the_cdi_folder_is_emptied_while_a_container_ends(agent: Agent, world: World) -> None:
    """It is started again with the GPU that it had."""
    world.create(template("one"), pod("p", template_name="one", containers=[container(command="sleep 3600")]))
    world.running("p")
    before = world.gpu_nodes("p")
    for path in CDI.glob("k8s.gpu.nvidia.com-*"):
        path.unlink()
    for pid in processes_of(uid_of(world, "p")):
        if "sleep" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    world.kubectl.wait("the container started again", lambda: world.restarts("p") >= 1, seconds=60)
    world.running("p", seconds=60)
    assert world.gpu_nodes("p") == before != set()


@contextlib.contextmanager
def other_boards(gpus: SimulatedNode) -> Iterator[dict[int, str]]:
    """Other UUIDs in every slot, and those that were there again at the end."""
    before = {gpu.slot: gpu.uuid for gpu in gpus.state().gpus}
    new = {slot: f"GPU-{slot:08x}-aaaa-bbbb-cccc-dddddddddddd" for slot in before}
    try:
        for slot, uuid in new.items():
            gpus.replace_gpu(slot, uuid)
        yield new
    finally:
        for slot, uuid in before.items():
            gpus.replace_gpu(slot, uuid)


def kill_containers() -> None:
    def none_left() -> bool:
        pids = [pid for _, pid in processes()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    until("the end of all containers", 10, none_left)


def test_a_node_set_up_anew_under_its_name(agent: Agent, world: World) -> None:
    """The claim is still allocated the device's name: its pod gets the GPU that has the name now, as soon as the driver
    is there."""
    world.create(claim("old"), pod("user", claim_name="old"))
    world.running("user")
    (device,) = world.devices_of(world.kubectl.json("get", "resourceclaim", "old", "-n", world.namespace))
    gpus = agent.gpus()
    agent.kill()
    agent.node.supervisor.stop("kubelet", hard=True)
    kill_containers()
    shutil.rmtree(PLUGIN)
    (KUBELET_ROOT / "dra_manager_state").unlink()
    for path in CDI.iterdir():
        path.unlink()
    gpus.reboot()
    gpus.set_driver(loaded=False)
    with other_boards(gpus) as boards:
        agent.node.start_kubelet()
        agent.start(ready=False)
        time.sleep(2)
        gpus.set_driver(loaded=True)
        agent.wait_ready(60)
        published = {entry["attributes"]["uuid"]["string"] for entry in world.devices().values()}
        assert published == set(boards.values())
        world.kubectl.wait("the pod's GPU", lambda: holders(agent) == {device: ["old"]}, seconds=120)
        world.kubectl.wait("the container started again", lambda: world.restarts("user") >= 1, seconds=120)
        world.running("user", seconds=120)
        assert world.gpu_nodes("user")
        world.delete("pod/user")
        agent.stop()
    agent.start()
