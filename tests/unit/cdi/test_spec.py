"""The model renders what runtimes accept, with the smallest version, and refuses what they would choke on."""

import json

import pytest

from kubeletplugin.cdi.spec import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    Mount,
    Spec,
    SpecError,
    qualified_name,
    render,
    required_version,
)
from tests.unit.cdi.checker import problems

ENV = ContainerEdits(env={"A": "b"})


def make(edits: ContainerEdits = ENV, *, name: str = "one", class_: str = "claim", top: ContainerEdits = ENV) -> Spec:
    return Spec("k8s.gpu.nvidia.com", class_, (Device(name, edits),), top)


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (make(), "0.3.0"),
        (make(ContainerEdits(device_nodes=(DeviceNode("/dev/a", type="c", major=1),))), "0.3.0"),
        (make(ContainerEdits(mounts=(Mount("/a", "/b", type="bind"),))), "0.4.0"),
        (make(name="1one"), "0.5.0"),
        (make(ContainerEdits(device_nodes=(DeviceNode("/dev/a", host_path="/x/dev/a"),))), "0.5.0"),
        (make(top=ContainerEdits(device_nodes=(DeviceNode("/dev/a", host_path="/x/dev/a"),))), "0.5.0"),
        (make(class_="claim.x"), "0.6.0"),
        (make(ContainerEdits(additional_gids=(44,))), "0.7.0"),
    ],
)
def test_version_is_the_smallest_that_the_fields_need(spec: Spec, version: str) -> None:
    assert required_version(spec) == version
    assert problems(json.loads(render(spec))) == []


def test_json_of_every_field() -> None:
    node = DeviceNode("/dev/n", "/root/dev/n", "c", 195, 254, 0o666, "rwm", 0, 44)
    hook = Hook("createContainer", "/usr/bin/h", ("h", "do"), ("A=b",), 5)
    mount = Mount("/root/lib", "/lib", ("ro", "rbind"), "bind")
    edits = ContainerEdits({"K": "v=w"}, (node,), (hook,), (mount,), (44,))
    document = json.loads(render(make(edits)))
    assert document == {
        "cdiVersion": "0.7.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "containerEdits": {"env": ["A=b"]},
        "devices": [
            {
                "name": "one",
                "containerEdits": {
                    "env": ["K=v=w"],
                    "deviceNodes": [
                        {
                            "path": "/dev/n",
                            "hostPath": "/root/dev/n",
                            "type": "c",
                            "major": 195,
                            "minor": 254,
                            "fileMode": 438,
                            "permissions": "rwm",
                            "uid": 0,
                            "gid": 44,
                        }
                    ],
                    "hooks": [
                        {
                            "hookName": "createContainer",
                            "path": "/usr/bin/h",
                            "args": ["h", "do"],
                            "env": ["A=b"],
                            "timeout": 5,
                        }
                    ],
                    "mounts": [
                        {"hostPath": "/root/lib", "containerPath": "/lib", "options": ["ro", "rbind"], "type": "bind"}
                    ],
                    "additionalGids": [44],
                },
            }
        ],
    }
    assert problems(document) == []


def test_empty_values_are_left_out() -> None:
    document = json.loads(
        render(make(ContainerEdits(device_nodes=(DeviceNode("/dev/n", type="c", major=1),)), top=ContainerEdits()))
    )
    assert "containerEdits" not in document
    assert document["devices"][0]["containerEdits"] == {"deviceNodes": [{"path": "/dev/n", "type": "c", "major": 1}]}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec("v", "claim", (Device("a", ENV),)), "vendor 'v'"),
        (Spec("a.com", "b", (Device("a", ENV),)), "class 'b'"),
        (Spec("1.com", "claim", (Device("a", ENV),)), "vendor '1.com'"),
        (Spec("a.com", "claim-", (Device("a", ENV),)), "class 'claim-'"),
        (Spec("a.com", "claim", ()), "defines no device"),
        (Spec("a.com", "claim", (Device("a", ContainerEdits()),)), "a.com/claim=a: without edits"),
        (Spec("a.com", "claim", (Device("a b", ENV),)), "not a name"),
        (Spec("a.com", "claim", (Device("a_", ENV),)), "not a name"),
        (Spec("a.com", "claim", (Device("a", ENV), Device("a", ENV))), "defined twice"),
        (make(ContainerEdits(env={"": "x"})), "bad environment variable"),
        (make(ContainerEdits(env={"A=B": "x"})), "bad environment variable"),
        (make(top=ContainerEdits(env={"A": "x\0y"})), "bad environment variable"),
        (make(ContainerEdits(device_nodes=(DeviceNode("dev/a"),))), "'dev/a' isn't absolute"),
        (make(ContainerEdits(device_nodes=(DeviceNode("/dev/a", permissions="x"),))), "permissions 'x'"),
        (make(ContainerEdits(hooks=(Hook("prestart", "h"),))), "'h' isn't absolute"),
        (make(ContainerEdits(hooks=(Hook("prestart", "/h", env=("A",)),))), "bad environment of hook"),
        (make(ContainerEdits(mounts=(Mount("/a", "b"),))), "'b' isn't absolute"),
    ],
)
def test_refused_before_a_runtime_sees_it(spec: Spec, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        render(spec)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"cdiVersion": "0.3.0", "kind": "a.com/claim", "devices": []}, "spec.devices is empty"),
        ({"cdiVersion": "0.3.0", "kind": "a.com/claim", "devices": [{"name": "a"}]}, "device lacks containerEdits"),
        (
            {
                "cdiVersion": "0.5.0",
                "kind": "a.com/claim",
                "devices": [{"name": "a", "containerEdits": {"env": ["A=b"]}}],
            },
            "version 0.5.0 where 0.3.0 is right",
        ),
        (
            {"cdiVersion": "0.3.0", "kind": "a.com/b", "devices": [{"name": "a", "containerEdits": {"env": ["A=b"]}}]},
            "kind a.com/b has the bad part 'b'",
        ),
        (
            {"cdiVersion": "0.3.0", "kind": "a.com/cc", "devices": [{"name": "a", "containerEdits": {"nodes": ["A"]}}]},
            "edits has the unknown field nodes",
        ),
    ],
)
def test_the_checker_itself_finds_faults(document: object, problem: str) -> None:
    assert problems(document) == [problem]


def test_qualified_name() -> None:
    assert qualified_name("k8s.gpu.nvidia.com", "claim", "u-gpu-0") == "k8s.gpu.nvidia.com/claim=u-gpu-0"
