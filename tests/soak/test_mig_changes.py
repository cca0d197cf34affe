"""MIG layouts change by hand again and again on one GPU, while a partition of another is in use."""

import time
from collections import Counter

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import MIG_CLASS, claim_spec, pod, request, template
from tests.cluster.world import World
from tests.soak.conftest import Repeats, Tell

CHANGES = 40
GPU, BYSTANDER = 7, 6
LAYOUTS = (
    ("1g.10gb",) * 7,
    ("3g.40gb", "3g.40gb"),
    ("7g.80gb",),
    ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"),
    ("1g.20gb",) * 4,
)


def test_layouts_in_a_loop(agent: Agent, world: World, repeats: Repeats, tell: Tell) -> None:
    changes, seconds, gpus = repeats(CHANGES), [], agent.gpus()
    gpus.set_mig_layout(f"{BYSTANDER}=3g.40gb,3g.40gb")
    try:
        _wait_published(world, agent, BYSTANDER, Counter({"3g.40gb": 2}))
        world.create(*(template(_dns(name), claim_spec(_mig(GPU, agent, name))) for name in _profiles()))
        world.create(
            template("held", claim_spec(_mig(BYSTANDER, agent, "3g.40gb"))), pod("holder", template_name="held")
        )
        world.running("holder")
        seen = _caps(world, "holder")
        for number in range(changes):
            layout = LAYOUTS[number % len(LAYOUTS)]
            begun = time.monotonic()
            gpus.set_mig_layout(f"{GPU}={','.join(layout)}")
            _wait_published(world, agent, GPU, Counter(layout))
            seconds.append(time.monotonic() - begun)
            user = f"user-{number}"
            world.create(pod(user, template_name=_dns(layout[0])))
            world.running(user)
            assert len(_caps(world, user)) == 2
            world.delete(f"pod/{user}")
        assert _caps(world, "holder") == seen and world.restarts("holder") == 0
        world.delete("pod/holder")
    finally:
        for gpu in (GPU, BYSTANDER):
            gpus.replace_gpu(gpu, gpus.state().gpus[gpu].uuid)
        world.kubectl.wait("whole GPUs again", lambda: {f"gpu-{GPU}", f"gpu-{BYSTANDER}"} <= set(world.devices()))
    seconds.sort()
    tell(changes=changes, seconds_to_published=f"{seconds[len(seconds) // 2]:.2f} (longest {seconds[-1]:.2f})")


def _profiles() -> set[str]:
    return {name for layout in LAYOUTS for name in layout}


def _dns(profile: str) -> str:
    return profile.replace(".", "-")


def _mig(gpu: int, agent: Agent, profile: str) -> dict[str, object]:
    attributes = 'device.attributes["gpu.nvidia.com"]'
    uuid = agent.gpus().state().gpus[gpu].uuid
    return request(
        device_class=MIG_CLASS, cel=f'{attributes}.profile == "{profile}" && {attributes}.parentUUID == "{uuid}"'
    )


def _wait_published(world: World, agent: Agent, gpu: int, wanted: Counter[str]) -> None:
    uuid = agent.gpus().state().gpus[gpu].uuid

    def published() -> bool:
        attributes = [device["attributes"] for device in world.devices().values()]
        ours = [each for each in attributes if each.get("parentUUID", {}).get("string") == uuid]
        whole = any(each.get("uuid", {}).get("string") == uuid for each in attributes)
        return Counter(each["profile"]["string"] for each in ours) == wanted and not whole

    world.kubectl.wait(f"GPU {gpu} published as {dict(wanted)}", published, 30)


def _caps(world: World, name: str) -> set[str]:
    return set(world.exec(name, "find", "/dev/nvidia-caps", "-type", "c").split())
