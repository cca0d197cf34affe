"""A claim's file: small, a pure function of the claim and the node, under ids that never change."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.cdi.api import ClaimDevice, ClaimSpecs
from kubeletplugin.cdi.claims import ClaimSpecFiles
from kubeletplugin.cdi.driver import DRIVER_FILE
from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.errors import ClaimError, NotActiveError
from kubeletplugin.inventory.model import Device
from tests.unit.cdi.checker import problems
from tests.unit.cdi.machine import VERSION, LostLease, Machine, gpu, mig
from tests.unit.cdi.test_hooktool import CURRENT

UID = "82d152a2-d8a3-479a-a9e7-26161833d98a"
FILE = f"k8s.gpu.nvidia.com-claim_{UID}.json"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, "/host")
    machine.load_driver(gpus=4)
    machine.driver.refresh(VERSION)
    return machine


def device(machine: Machine, what: Device, share: str | None = None, **env: str) -> ClaimDevice:
    return ClaimDevice(machine.claims.cdi_name(UID, what.name, share), what, env)


def document(machine: Machine, uid: str = UID) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((machine.cdi / f"k8s.gpu.nvidia.com-claim_{uid}.json").read_bytes())
    assert problems(loaded) == []
    return loaded


def test_the_whole_file_of_a_gpu(machine: Machine) -> None:
    specs: ClaimSpecs = machine.claims
    specs.write(UID, [device(machine, gpu(3))])
    assert document(machine) == {
        "cdiVersion": "0.5.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "devices": [
            {
                "name": f"{UID}-gpu-3",
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia3",
                            "hostPath": "/host/dev/nvidia3",
                            "type": "c",
                            "major": 195,
                            "minor": 3,
                            "fileMode": 438,
                            "permissions": "rwm",
                        }
                    ]
                },
            }
        ],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }
    assert (machine.cdi / FILE).stat().st_size < 512


def test_ids(machine: Machine) -> None:
    claims = machine.claims
    assert claims.cdi_name("u", "gpu-0") == "u-gpu-0"
    assert claims.cdi_name("u", "gpu-0", "7c4f") == "u-gpu-0-7c4f"
    assert claims.device_ids("u-gpu-0") == ("k8s.gpu.nvidia.com/claim=u-gpu-0", "k8s.gpu.nvidia.com/driver=all")


def test_a_mig_partition_gets_its_two_capabilities_and_no_display_node(machine: Machine) -> None:
    machine.devices("dri/card0", "dri/renderD128")
    machine.drm("0000:10:00.0", "card0", "renderD128")
    machine.caps("gpu0/mig/gi9", 84)
    machine.caps("gpu0/mig/gi9/ci0", 85)
    machine.caps("gpu0/mig/gi7", 66)
    machine.claims.write(UID, [device(machine, mig(0, 9, 0, "gpu-0-mig-1g10gb-19-2"))])
    (found,) = document(machine)["devices"]
    assert [node["path"] for node in found["containerEdits"]["deviceNodes"]] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap84",
        "/dev/nvidia-caps/nvidia-cap85",
    ]


def test_a_partition_that_is_gone_is_named(machine: Machine) -> None:
    with pytest.raises(ClaimError, match=r"gpu-0-mig-1g10gb-19-2: read .*gi9/access: FileNotFoundError"):
        machine.claims.write(UID, [device(machine, mig(0, 9, 0, "gpu-0-mig-1g10gb-19-2"))])


def test_a_gpu_s_display_nodes_and_links(machine: Machine) -> None:
    machine.devices("dri/card1", "dri/renderD128")
    machine.drm("0000:13:00.0", "card1", "renderD128")
    machine.link("/dev/dri/by-path/pci-0000:13:00.0-card", "../card1")
    machine.claims.write(UID, [device(machine, gpu(3))])
    (found,) = document(machine)["devices"]
    assert [n["path"] for n in found["containerEdits"]["deviceNodes"]] == [
        "/dev/nvidia3",
        "/dev/dri/card1",
        "/dev/dri/renderD128",
    ]
    assert "hooks" not in found["containerEdits"], "no hook program, no links"
    machine.put("/usr/bin/nvidia-cdi-hook", CURRENT)
    machine.driver.refresh(VERSION)
    machine.claims.write(UID, [device(machine, gpu(3))])
    (found,) = document(machine)["devices"]
    (hook,) = found["containerEdits"]["hooks"]
    assert hook["args"][1:] == ["create-symlinks", "--link", "../card1::/dev/dri/by-path/pci-0000:13:00.0-card"]


def test_two_shares_of_one_device_are_two_cdi_devices(machine: Machine) -> None:
    shares = [device(machine, gpu(0), "aaaa", SHARE="1"), device(machine, gpu(0), "bbbb", SHARE="2")]
    machine.claims.write(UID, shares)
    found = document(machine)["devices"]
    assert [entry["name"] for entry in found] == [f"{UID}-gpu-0-aaaa", f"{UID}-gpu-0-bbbb"]
    assert [entry["containerEdits"]["env"] for entry in found] == [["SHARE=1"], ["SHARE=2"]]


def test_one_device_by_two_requests_is_one_cdi_device(machine: Machine) -> None:
    machine.claims.write(UID, [device(machine, gpu(0), A="1"), device(machine, gpu(0), B="2")])
    (found,) = document(machine)["devices"]
    assert found["containerEdits"]["env"] == ["A=1", "B=2"]
    assert len(found["containerEdits"]["deviceNodes"]) == 1


def test_aliases_resolve_to_nothing(machine: Machine) -> None:
    machine.claims.write(UID, [device(machine, gpu(1))], aliases=[f"{UID}-gpu-0", f"{UID}-gpu-1"])
    by_name = {entry["name"]: entry["containerEdits"] for entry in document(machine)["devices"]}
    assert by_name[f"{UID}-gpu-0"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    assert [node["path"] for node in by_name[f"{UID}-gpu-1"]["deviceNodes"]] == ["/dev/nvidia1"]


def test_numbers_are_those_of_the_moment(machine: Machine) -> None:
    machine.claims.write(UID, [device(machine, gpu(0))])
    inode = (machine.cdi / FILE).stat().st_ino
    machine.claims.write(UID, [device(machine, gpu(0))])
    assert (machine.cdi / FILE).stat().st_ino == inode, "same content, same file"
    (machine.proc / "devices").write_text("Character devices:\n201 nvidia\n510 nvidia-uvm\n")
    machine.claims.write(UID, [device(machine, gpu(0))])
    assert document(machine)["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] == 201
    driver_file = json.loads((machine.cdi / DRIVER_FILE).read_bytes())
    majors = {node["path"]: node["major"] for node in driver_file["containerEdits"]["deviceNodes"]}
    assert majors["/dev/nvidiactl"] == 201, "the driver's file follows with the claim"


def test_a_missing_node_is_named_with_what_to_do(machine: Machine) -> None:
    with pytest.raises(ClaimError, match=r"gpu-5: device node /dev/nvidia5 is missing .* nvidia-modprobe -c 5"):
        machine.claims.write(UID, [device(machine, gpu(0)), device(machine, gpu(5))])
    assert not machine.claims.exists(UID)


def test_a_node_that_was_missing_counts_as_soon_as_it_is_there(machine: Machine) -> None:
    with pytest.raises(ClaimError):
        machine.claims.write(UID, [device(machine, gpu(5))])
    machine.devices("nvidia5")
    machine.claims.write(UID, [device(machine, gpu(5))])
    assert machine.claims.exists(UID)


def test_no_device(machine: Machine) -> None:
    with pytest.raises(ClaimError, match="no device"):
        machine.claims.write(UID, [])


@pytest.mark.parametrize("name", ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_CTK_LIBCUDA_DIR", "GPUCLAIM_DRIVER_FILES"])
def test_variables_of_other_edits_are_refused(machine: Machine, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        machine.claims.write(UID, [device(machine, gpu(0), **{name: "all"})])


def test_which_claims_have_a_file(machine: Machine) -> None:
    machine.claims.write(UID, [device(machine, gpu(0))])
    machine.claims.write("other", [ClaimDevice("other-gpu-1", gpu(1))])
    (machine.cdi / "k8s.gpu.nvidia.com-claim_peer.yaml").touch()
    (machine.cdi / "k8s.gpu.nvidia.com-claim_x.json.pod-9.1.0.tmp").touch()
    assert machine.claims.claim_uids() == {UID, "other"}
    machine.claims.remove("other")
    machine.claims.remove("other")
    assert machine.claims.claim_uids() == {UID}
    assert (machine.claims.exists(UID), machine.claims.exists("other")) == (True, False)


def test_the_peer_s_file_of_a_claim_never_stays_beside_ours(machine: Machine) -> None:
    peer = machine.cdi / f"k8s.gpu.nvidia.com-claim_{UID}.yaml"
    peer.write_text("---\n")
    machine.claims.write(UID, [device(machine, gpu(0))])
    assert sorted(os.listdir(machine.cdi)) == sorted([FILE, DRIVER_FILE])
    peer.write_text("---\n")
    machine.claims.remove(UID)
    assert os.listdir(machine.cdi) == [DRIVER_FILE]


def test_only_the_active_instance_writes_and_removes(machine: Machine) -> None:
    machine.claims.write(UID, [device(machine, gpu(0))])
    writer = SpecWriter(machine.cdi, LostLease(), prefix="k8s.gpu.nvidia.com-", instance="old", epoch=1)
    stale = ClaimSpecFiles(writer, machine.nodes, machine.driver)
    with pytest.raises(NotActiveError):
        stale.write(UID, [device(machine, gpu(1))])
    with pytest.raises(NotActiveError):
        stale.remove(UID)
    assert document(machine)["devices"][0]["name"] == f"{UID}-gpu-0"


def test_cost_is_flat_however_many_claims_are_held(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prepare must not read the folder: its work would grow with the claims held."""

    def refuse(*args: object) -> list[str]:
        raise AssertionError("listed the CDI folder")

    monkeypatch.setattr(SpecWriter, "names", refuse)
    monkeypatch.setattr(SpecWriter, "_listing", refuse)
    machine.claims.write(UID, [device(machine, gpu(0))])
    machine.claims.remove(UID)
