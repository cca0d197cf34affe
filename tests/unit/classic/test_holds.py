"""What the classic route has handed out, by the kubelet's two sources, and when it is over."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from kubeletplugin.classic.checkpoint import Allocated, DeviceCheckpoint, DeviceCheckpointFile, parse
from kubeletplugin.classic.holds import ClassicHold, ClassicHolds, blocked, withhold
from kubeletplugin.classic.pod_resources import PodDevices, Used, read
from kubeletplugin.classic.tokens import tokens
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory, MigIdentity
from kubeletplugin.pb.deviceplugin.v1beta1 import api_pb2 as deviceplugin
from kubeletplugin.pb.podresources.v1 import api_pb2 as podresources

DATA = Path(__file__).parent / "data"
UUID = "GPU-7f3a67a4-2b96-5e83-94da-2651e3f36cac"
OTHER = "GPU-d74ea204-b3c3-5a06-b4b2-27afe750a7b8"
PARTITION = "MIG-1f5e4fdb-4393-5fe6-a3de-865e34a867bb"
HOLD = ClassicHold("nvidia.com/gpu", {"uid-1": "team/train"})


# --- which device an id means ---
@pytest.mark.parametrize(
    ("ids", "more", "found"),
    [
        ([UUID], [], {UUID}),
        ([f"{UUID}::0", f"{UUID}::3", OTHER], [], {UUID, OTHER}),
        ([UUID.upper(), OTHER.lower()], [], {UUID, OTHER}),
        ([f"{UUID}-0"], [], {UUID}),
        ([PARTITION], ["/dev/nvidia3"], {PARTITION}),
        ([f"MIG-{UUID}/1/0"], [], {UUID}),
        (["0"], [f"{UUID},{OTHER}"], {UUID, OTHER}),
        (["0"], [f"k8s.device-plugin.nvidia.com/gpu={UUID}"], {UUID}),
        (["nvidia3"], [], {"nvidia3"}),
        (["3"], ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3"], {"nvidia3"}),
        (["widget-0"], ["void"], set()),
    ],
)
def test_tokens(ids: list[str], more: list[str], found: set[str]) -> None:
    assert tokens(ids, more) == found


# --- the checkpoint ---
@pytest.mark.parametrize(
    ("file", "pod", "devices"),
    [
        ("envvar", "dc59dde0-d400-4d0f-9e34-a27fb3cee75b", {UUID, OTHER}),
        (
            "cdi-cri",
            "6d3868de-207e-4abe-a526-8c9472693813",
            {"GPU-daf2b511-bc02-5b4b-8db3-ab7f0d81252f", "GPU-5f8e0220-0cd4-5508-9996-1070320cd3fb"},
        ),
    ],
)
def test_a_checkpoint_as_a_real_kubelet_wrote_it(file: str, pod: str, devices: set[str]) -> None:
    found = parse((DATA / f"device-checkpoint-{file}.json").read_bytes())
    assert found == DeviceCheckpoint((Allocated(pod, "c0", "nvidia.com/gpu", frozenset(devices)),))


def checkpoint(**entry: Any) -> bytes:
    whole: dict[str, Any] = {
        "PodUID": "p",
        "ContainerName": "c",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {},
        "AllocResp": None,
    }
    return json.dumps({"Data": {"PodDeviceEntries": [{**whole, **entry}]}, "Checksum": 1}).encode()


def test_devices_known_by_the_answer_to_allocate_alone() -> None:
    answer = deviceplugin.ContainerAllocateResponse(devices=[deviceplugin.DeviceSpec(host_path="/dev/nvidia5")])
    encoded = base64.b64encode(answer.SerializeToString()).decode()
    (found,) = parse(checkpoint(DeviceIDs={"-1": ["5"]}, AllocResp=encoded)).allocated
    assert found.devices == {"nvidia5"}


def test_other_vendors_devices_count_if_they_are_gpus_of_ours() -> None:
    assert parse(checkpoint(ResourceName="example.com/gpu", DeviceIDs=None)) == DeviceCheckpoint()
    (found,) = parse(checkpoint(ResourceName="example.com/gpu", DeviceIDs={"0": [UUID]})).allocated
    assert found.devices == {UUID}


@pytest.mark.parametrize("ids", [{"0": [UUID]}, {"0": ["0"]}])
def test_an_answer_that_cannot_be_read_is_no_reason_to_know_nothing(ids: dict[str, list[str]]) -> None:
    (found,) = parse(checkpoint(DeviceIDs=ids, AllocResp="bm90IGEgbWVzc2FnZQ==")).allocated
    assert found.devices == ({UUID} & set(ids["0"]))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"Data": {}}', checkpoint(DeviceIDs=3), checkpoint(PodUID=None, DeviceIDs={"0": 3})],
)
def test_what_cannot_be_read_says_so(text: bytes) -> None:
    found = parse(text)
    assert found.unreadable.startswith("kubelet_internal_checkpoint: ") and found.allocated == ()


def test_no_file_is_no_device_and_one_that_cannot_be_opened_is_unreadable(tmp_path: Path) -> None:
    file = DeviceCheckpointFile(tmp_path)
    assert file.read() == DeviceCheckpoint()
    file.path.mkdir(parents=True)
    assert file.read().unreadable == f"read {file.path}: Is a directory"
    root = tmp_path / "elsewhere"
    assert DeviceCheckpointFile(root).read().unreadable == f"{root} doesn't exist"


def test_two_versions_of_the_same_content_are_told_apart(tmp_path: Path) -> None:
    file = DeviceCheckpointFile(tmp_path)
    file.path.parent.mkdir()
    versions = []
    for _ in range(2):
        file.path.with_suffix(".tmp").write_bytes(checkpoint(DeviceIDs={"0": [UUID]}))
        file.path.with_suffix(".tmp").rename(file.path)
        versions += [file.read(), file.read()]
    assert versions[0] == versions[1] != versions[2] == versions[3]
    assert versions[0].allocated == versions[2].allocated


@pytest.mark.parametrize("entries", [None, []])
def test_an_empty_checkpoint(entries: object) -> None:
    assert parse(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 0}).encode()) == DeviceCheckpoint()


# --- pod-resources ---
def test_pod_resources_as_a_real_kubelet_answered() -> None:
    answer = json_format.Parse(
        (DATA / "pod-resources-cdi-cri.json").read_text(), podresources.ListPodResourcesResponse()
    )
    found = read(answer)
    pod = ("default", "two-gpus")
    gpus = ["GPU-daf2b511-bc02-5b4b-8db3-ab7f0d81252f", "GPU-5f8e0220-0cd4-5508-9996-1070320cd3fb"]
    assert found == PodDevices(
        frozenset({pod}), tuple(Used(pod, "nvidia.com/gpu", frozenset({gpu})) for gpu in gpus), {}
    )


def test_claims_are_known_by_our_cdi_ids() -> None:
    uid = "24c3c286-c527-45bc-9db1-161760d2c046"

    def pod(name: str, driver: str = "gpu.nvidia.com") -> podresources.PodResources:
        ids = [f"k8s.gpu.nvidia.com/claim={uid}-gpu-0", "k8s.gpu.nvidia.com/driver=all", "k8s.gpu.nvidia.com/claim=x"]
        resource = podresources.ClaimResource(
            driver_name=driver, cdi_devices=[podresources.CDIDevice(name=cdi_id) for cdi_id in ids]
        )
        dynamic = podresources.DynamicResource(claim_name="c", claim_namespace="ns", claim_resources=[resource])
        container = podresources.ContainerResources(name="c", dynamic_resources=[dynamic])
        return podresources.PodResources(name=name, namespace="ns", containers=[container])

    found = read(podresources.ListPodResourcesResponse(pod_resources=[pod("a"), pod("b"), pod("c", "other")]))
    assert found.claims == {uid: {("ns", "a"), ("ns", "b")}}


# --- how long a hold lasts ---
@pytest.mark.parametrize(
    ("looks", "held"),
    [
        ([("seen", False)], True),
        ([("seen", True), ("missed", True)], True),
        ([("seen", True), ("missed", True), ("missed", True)], False),
        ([("seen", True), ("missed", False), ("missed", False), ("missed", False)], True),
        ([("seen", True), ("missed", True), ("missed", False), ("missed", True)], False),
        ([("seen", True), ("missed", True), ("seen", False), ("missed", True)], True),
        ([("missed", True)], False),
    ],
)
def test_a_hold_is_over_when_it_was_missed_twice_by_looks_that_count(looks: list[tuple[str, bool]], held: bool) -> None:
    holds = ClassicHolds()
    for what, trusted in looks:
        (holds.look if trusted else holds.see)({UUID: HOLD} if what == "seen" else {})
    assert (UUID in holds.current) is held


def test_one_that_was_missed_once_is_in_doubt() -> None:
    holds = ClassicHolds()
    doubts = []
    for seen in ({UUID: HOLD}, {}, {}):
        holds.look(seen)
        doubts.append(holds.doubtful)
    assert doubts == [False, True, False]


# --- what it blocks ---
GPU = Device("gpu-0", DeviceKind.GPU, UUID, UUID, 3, 0, "0000:1b:00.0", {}, {})
NEIGHBOUR = replace(GPU, name="gpu-1", uuid=OTHER, gpu_uuid=OTHER, minor=13, index=1)
MIG = replace(GPU, name="gpu-0-mig-a", kind=DeviceKind.MIG, uuid=PARTITION, mig=MigIdentity("1g.10gb", 19, 0, 1, 7, 0))
MIG_2 = replace(MIG, name="gpu-0-mig-b", uuid="MIG-b")


@pytest.mark.parametrize(
    ("token", "names"),
    [
        (UUID, {"gpu-0", "gpu-0-mig-a", "gpu-0-mig-b"}),
        ("nvidia3", {"gpu-0", "gpu-0-mig-a", "gpu-0-mig-b"}),
        (PARTITION, {"gpu-0", "gpu-0-mig-a"}),
        (OTHER, {"gpu-1"}),
        ("GPU-of-nobody", set()),
    ],
)
def test_what_overlaps_is_withheld_with_the_holder_named(token: str, names: set[str]) -> None:
    inventory = Inventory("580", (GPU, NEIGHBOUR, MIG, MIG_2))
    problem = "another device plugin gave it out as nvidia.com/gpu (to pod uid-1)"
    withheld = withhold(inventory, {token: HOLD})
    assert {device.name: device.problem for device in withheld.devices if device.problem} == dict.fromkeys(
        names, problem
    )
    assert {device.name for device in inventory.devices if device.uuid in blocked(inventory, {token: HOLD})} == names


def test_a_problem_that_it_has_already_comes_first_and_names_are_not_for_everybody() -> None:
    inventory = Inventory("580", (replace(GPU, problem="lost"),))
    assert withhold(inventory, {UUID: HOLD}).devices[0].problem == "lost"
    nameless = ClassicHold("nvidia.com/gpu", {"team/train": "team/train"})
    problem = withhold(Inventory("580", (GPU,)), {UUID: nameless}).devices[0].problem
    assert problem.endswith("(to pod unknown)")
