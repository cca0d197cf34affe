"""A container prepared by us gets all that NVIDIA's driver gave it on the same machine.

What the peer wrote into one file per claim, ours is in two; the runtime's view of both together is compared. Every
difference that is meant is named here with its reason; any other fails.
"""

from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.cdi.api import ClaimDevice
from kubeletplugin.inventory.model import Device
from tests.contract.cdi.peer import DATA, HOOK, ROOT, captured, rebuild, seen_in_container
from tests.contract.cdi.runtime import Container, UnresolvableError, inject
from tests.unit.cdi.machine import LIBRARIES, VERSION, Machine, gpu, mig

STAND_IN = "/stand-in"
"""An absolute path for the captures' ``<root>``, which isn't one."""

# What ours has beyond the peer's.
EXTRA_LINKS = {
    f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.1": (
        "the video library's SONAME link: the peer leaves it to ldconfig, which an image without one doesn't run"
    ),
}
EXTRA_NODE_FIELDS = {
    "type": "with type and major given the runtime needs no node on the host, and a stale one can't mislead it",
}


def devices_of(document: dict[str, Any], uid: str) -> list[Device]:
    names = [device["name"].removeprefix(f"{uid}-") for device in document["devices"]]
    return [mig(0, 9, 0, name) if "-mig-" in name else gpu(int(name.removeprefix("gpu-"))) for name in names]


def ours(machine: Machine, uid: str, devices: list[Device]) -> Container:
    names = [machine.claims.cdi_name(uid, device.name) for device in devices]
    machine.claims.write(uid, [ClaimDevice(n, device) for n, device in zip(names, devices, strict=True)])
    return inject(machine.cdi, [cdi_id for name in names for cdi_id in machine.claims.device_ids(name)])


def theirs(folder: str, document: dict[str, Any]) -> Container:
    ids = [f"{document['kind']}={device['name']}" for device in document["devices"]]
    return inject(DATA / folder, ids, strict=False)


def on_stand_in(value: Any) -> Any:
    """The peer's edits with our stand-in's path for the captures' root."""
    if isinstance(value, str):
        return value.replace(ROOT, STAND_IN)
    if isinstance(value, dict):
        return {key: on_stand_in(entry) for key, entry in value.items()}
    return [on_stand_in(entry) for entry in value] if isinstance(value, list) else value


def compared(nodes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By path; the host's path is the same one where none is given, which the peer doesn't make use of."""
    return {
        path: {"hostPath": path} | {key: value for key, value in node.items() if key not in EXTRA_NODE_FIELDS}
        for path, node in nodes.items()
    }


CASES = [
    (folder, uid, document)
    for folder in ("default", "static-mig", "driver-root-slash")
    for uid, document in captured(folder)
]


@pytest.mark.parametrize(("folder", "uid", "document"), CASES, ids=[f"{f}-{u[:8]}" for f, u, _ in CASES])
def test_same_edits(tmp_path: Path, folder: str, uid: str, document: dict[str, Any]) -> None:
    root = "" if folder == "driver-root-slash" else ROOT
    their_hook = document["containerEdits"]["hooks"][0]["path"]
    machine = rebuild(tmp_path, document, root, on_stand_in(their_hook))
    machine.caps("gpu0/mig/gi9", 84)
    machine.caps("gpu0/mig/gi9/ci0", 85)
    we, they = ours(machine, uid, devices_of(document, uid)), theirs(folder, on_stand_in(document))
    assert we.env == they.env
    assert we.mounts == {path: on_stand_in(mount) for path, mount in they.mounts.items()}
    assert compared(we.nodes) == compared(on_stand_in(they.nodes))
    assert {path: target for path, target in we.links().items() if path not in EXTRA_LINKS} == they.links()
    assert EXTRA_LINKS.keys() <= we.links().keys()
    assert we.other_hooks() == they.other_hooks()
    assert {hook["path"] for hook in we.hooks} == {on_stand_in(their_hook)}
    assert [hook["env"] for hook in we.hooks] == [["NVIDIA_CTK_DEBUG=false"]] * len(we.hooks)


def test_the_hook_runs_once_per_container_however_many_devices(tmp_path: Path) -> None:
    uid, document = next((uid, doc) for uid, doc in captured("default") if len(doc["devices"]) == 3)
    machine = rebuild(tmp_path, document, ROOT, on_stand_in(HOOK))
    container = ours(machine, uid, devices_of(document, uid))
    assert len([node for node in container.nodes if node.removeprefix("/dev/nvidia").isdigit()]) == 3
    commands = [hook["args"][1] for hook in container.hooks]
    assert sorted(commands) == sorted(set(commands))


@pytest.mark.parametrize(
    ("container", "minors"),
    [
        ("one-gpu.c0", [2]),
        ("shared-1.c0", [7]),
        ("two-requests.first", [3]),
        ("two-requests.second", [4, 5]),
    ],
)
def test_what_the_container_sees(tmp_path: Path, container: str, minors: list[int]) -> None:
    (_, document), *_ = captured("default")
    machine = rebuild(tmp_path, document, ROOT, on_stand_in(HOOK))
    found = ours(machine, "some-claim", [gpu(minor) for minor in minors])
    seen = seen_in_container(container)
    assert len(seen.nodes) == 4 + len(minors) and seen.mounts
    assert found.env == seen.env
    assert {path: (node["major"], node.get("minor", 0)) for path, node in found.nodes.items()} == seen.nodes
    assert found.mounts.keys() == seen.mounts


def test_a_container_of_another_request_sees_only_its_own_gpu(tmp_path: Path) -> None:
    """One claim, two requests, two containers: each names its own devices of the claim's one file."""
    (_, document), *_ = captured("default")
    machine = rebuild(tmp_path, document, ROOT, on_stand_in(HOOK))
    ours(machine, "claim", [gpu(3), gpu(4), gpu(5)])
    first = inject(machine.cdi, list(machine.claims.device_ids("claim-gpu-3")))
    assert [path for path in first.nodes if path.removeprefix("/dev/nvidia").isdigit()] == ["/dev/nvidia3"]


def test_the_order_of_ids_makes_no_difference(tmp_path: Path) -> None:
    (_, document), *_ = captured("default")
    machine = rebuild(tmp_path, document, ROOT, on_stand_in(HOOK))
    ours(machine, "claim", [gpu(0)])
    ids = list(machine.claims.device_ids("claim-gpu-0"))
    forward, backward = inject(machine.cdi, ids), inject(machine.cdi, ids[::-1])
    assert (forward.env, forward.nodes, forward.mounts) == (backward.env, backward.nodes, backward.mounts)


def test_the_peer_s_file_of_the_same_claim_would_break_it_and_is_replaced(tmp_path: Path) -> None:
    uid, document = captured("default")[0]
    machine = rebuild(tmp_path, document, ROOT, on_stand_in(HOOK))
    (peer_file,) = (DATA / "default").glob(f"*{uid}.yaml")
    devices = devices_of(document, uid)
    ours(machine, uid, devices)
    (machine.cdi / peer_file.name).write_text(peer_file.read_text())
    ids = list(machine.claims.device_ids(machine.claims.cdi_name(uid, devices[0].name)))
    with pytest.raises(UnresolvableError):
        inject(machine.cdi, ids, strict=False)
    assert ours(machine, uid, devices).nodes


def test_an_id_from_before_a_move_resolves(tmp_path: Path) -> None:
    """R_ALIAS: a kubelet up to 1.36 asks for the old and the new id of a claim that moved."""
    (_, document), *_ = captured("default")
    machine = rebuild(tmp_path, document, ROOT, on_stand_in(HOOK))
    old, new = machine.claims.cdi_name("c", "gpu-0"), machine.claims.cdi_name("c", "gpu-1")
    machine.claims.write("c", [ClaimDevice(new, gpu(1))], aliases=[old])
    found = inject(machine.cdi, [*machine.claims.device_ids(old), *machine.claims.device_ids(new)])
    assert [path for path in found.nodes if path.removeprefix("/dev/nvidia").isdigit()] == ["/dev/nvidia1"]
    assert found.env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_captured_version_is_the_one_that_is_rebuilt() -> None:
    (_, document), *_ = captured("default")
    assert any(VERSION in mount["hostPath"] for mount in document["containerEdits"]["mounts"])
