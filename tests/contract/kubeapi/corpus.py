"""Objects that an API server takes or refuses, to compare the fake one with a real one.

``python -m tests.contract.kubeapi.corpus URL TOKEN`` sends them to a real server (they are dry runs, nothing is
stored) and writes its answers to tests/data/kubeapi, where test_corpus.py holds the fake server to them.
"""

import asyncio
import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

from gpuclaim.demo.apiserver_patch import merge_patch
from kubeapi.client import DEVICE_CLASSES, EVENTS, RESOURCE_SLICES, KubeApi, Resource
from kubeapi.credentials import Connection, FixedConnection, tls_context
from kubeapi.errors import ApiError
from kubeapi.rest import RestKubeApi
from tests.contract.kubeapi.objects import a_device, a_slice

Json = dict[str, Any]
GO_STRUCT = re.compile(r"Invalid value: \{.*\}: ")
"""A whole object in a message: the real server prints it with Go's names of its fields."""
ANSWERS = Path(__file__).parents[2] / "data" / "kubeapi" / "answers-1.36.3.json"


def _counter_set(name: str, count: int = 1) -> Json:
    return {"name": name, "counters": {f"c{i}": {"value": "1"} for i in range(count)}}


def _attributes(count: int) -> Json:
    return {f"a{i}": {"int": i} for i in range(count)}


def _capacity(value: Any, **policy: Any) -> Json:
    return {"memory": {"value": value, **({"requestPolicy": policy} if policy else {})}}


def _taint(**fields: str) -> Json:
    return {"key": "gpu.nvidia.com/lost", "effect": "NoSchedule", **fields}


def _attribute(**value: Any) -> Json:
    return a_device("d", attributes={"a": value})


def _named(name: str) -> Json:
    return a_device("d", attributes={name: {"int": 1}})


def _shared(capacity: Json) -> Json:
    return a_device("d", allowMultipleAllocations=True, capacity=capacity)


_CONSUMING: Json = {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}

DEVICES: dict[str, list[Json]] = {
    "empty pool": [],
    "128 devices": [a_device(f"gpu-{i}") for i in range(128)],
    "129 devices": [a_device(f"gpu-{i}") for i in range(129)],
    "64 devices, one tainted": [a_device(f"gpu-{i}", taints=[_taint()] if i == 0 else []) for i in range(64)],
    "65 devices, one tainted": [a_device(f"gpu-{i}", taints=[_taint()] if i == 0 else []) for i in range(65)],
    "65 devices, one consuming": [a_device(f"gpu-{i}", **(_CONSUMING if i == 0 else {})) for i in range(65)],
    "same name twice": [a_device("gpu-0"), a_device("gpu-0")],
    "device name upper case": [a_device("GPU-0")],
    "device name long": [a_device("g" * 64)],
    "device name empty": [a_device("")],
    "32 keys": [a_device("d", attributes=_attributes(31))],
    "33 keys": [a_device("d", attributes=_attributes(32))],
    "attribute string": [_attribute(string="x" * 64)],
    "attribute string long": [_attribute(string="x" * 65)],
    "attribute string long in bytes": [_attribute(string="ü" * 33)],
    "attribute string empty": [_attribute(string="")],
    "attribute bool false": [_attribute(bool=False)],
    "attribute int zero": [_attribute(int=0)],
    "attribute without value": [_attribute()],
    "attribute with two values": [_attribute(int=1, bool=True)],
    "attribute with unknown value": [_attribute(float=1)],
    "attribute list": [_attribute(strings=["a"])],
    "version": [_attribute(version="570.86.15")],
    "version pre-release and build": [_attribute(version="1.2.3-rc.1+b.007")],
    "version leading zero": [_attribute(version="535.104.05")],
    "version two parts": [_attribute(version="12.4")],
    "version empty": [_attribute(version="")],
    "key with domain": [_named("resource.kubernetes.io/pcieRoot")],
    "key with dash": [_named("pcie-root")],
    "key long": [_named("a" * 33)],
    "key with empty domain": [_named("/a")],
    "key with empty name": [_named("a.com/")],
    "key with bad domain": [_named("a_b.com/x")],
    "key with long domain": [_named(f"{'a' * 64}/x")],
    "key empty": [_named("")],
    "quantities are made canonical": [
        a_device(
            "d",
            capacity={
                "a": {"value": "81920Mi"},
                "b": {"value": "1000"},
                "c": {"value": 2048},
                "d": {"value": "1023Ki"},
                "e": {"value": "0"},
                "f": {"value": "0.5"},
                "g": {"value": "1.5Gi"},
                "h": {"value": "143771Mi"},
                "i": {"value": "85899345920"},
                "j": {"value": "0.5Ki"},
            },
        )
    ],
    "quantity bad": [a_device("d", capacity=_capacity("80 GB"))],
    "quantity empty": [a_device("d", capacity=_capacity(""))],
    "policy without sharing": [a_device("d", capacity=_capacity("80Gi", default="1Gi"))],
    "policy default": [_shared(_capacity("80Gi", default="1Gi"))],
    "policy range": [_shared(_capacity("80Gi", default="1Gi", validRange={"min": "1Gi", "step": "1Gi"}))],
    "policy range without min": [_shared(_capacity("80Gi", default="1Gi", validRange={"max": "2Gi"}))],
    "policy range without default": [_shared(_capacity("80Gi", validRange={"min": "1Gi"}))],
    "policy range above capacity": [
        _shared(_capacity("80Gi", default="1Gi", validRange={"min": "1Gi", "max": "90Gi"}))
    ],
    "policy range default off step": [
        _shared(_capacity("80Gi", default="1500Mi", validRange={"min": "1Gi", "step": "1Gi"}))
    ],
    "policy values": [_shared(_capacity("80Gi", default="1Gi", validValues=["1Gi", "2Gi"]))],
    "policy values unsorted": [_shared(_capacity("80Gi", default="1Gi", validValues=["2Gi", "1Gi"]))],
    "policy values without default among them": [_shared(_capacity("80Gi", default="3Gi", validValues=["1Gi"]))],
    "policy both": [_shared(_capacity("80Gi", default="1Gi", validValues=["1Gi"], validRange={"min": "1Gi"}))],
    "taint": [a_device("d", taints=[_taint(value="xid-79", timeAdded="2026-01-02T03:04:05Z")])],
    "taint of no effect": [a_device("d", taints=[_taint(effect="None")])],
    "taint unknown effect": [a_device("d", taints=[_taint(effect="Maybe")])],
    "taint without effect": [a_device("d", taints=[{"key": "a/b"}])],
    "taint free text": [a_device("d", taints=[_taint(value="fell off the bus")])],
    "taint bad key": [a_device("d", taints=[_taint(key="a b")])],
    "17 taints": [a_device("d", taints=[_taint(key=f"k{i}") for i in range(17)])],
    "node fields without perDeviceNodeSelection": [a_device("d", nodeName="n1")],
    "binding conditions alone": [a_device("d", bindingConditions=["a/b"])],
    "binding conditions": [a_device("d", bindingConditions=["a/b"], bindingFailureConditions=["a/c"])],
    "binding conditions overlap": [a_device("d", bindingConditions=["a/b"], bindingFailureConditions=["a/b"])],
    "consumption": [a_device("d", consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}])],
    "consumption without counters": [a_device("d", consumesCounters=[{"counterSet": "s", "counters": {}}])],
    "consumption of three sets": [
        a_device("d", consumesCounters=[{"counterSet": f"s{i}", "counters": {"c": {"value": "1"}}} for i in range(3)])
    ],
    "fields of the future": [a_device("d", consumesCounters=[], nodeAllocatableResources={"a": "b"})],
}

SPECS: dict[str, Json] = {
    "driver upper case": {"driver": "GPU.nvidia.com"},
    "driver long": {"driver": "a" * 64},
    "driver missing": {"driver": None},
    "driver bad": {"driver": "a_b"},
    "no pool name": {"pool": {"name": None}},
    "pool name with parts": {"pool": {"name": "a.b/c"}},
    "pool name bad": {"pool": {"name": "A//b"}},
    "slice count zero": {"pool": {"resourceSliceCount": 0}},
    "generation negative": {"pool": {"generation": -1}},
    "no node": {"nodeName": None},
    "node empty": {"nodeName": ""},
    "node bad": {"nodeName": "N_1"},
    "two kinds of node": {"allNodes": True},
    "all nodes false": {"allNodes": False},
    "all nodes": {"nodeName": None, "allNodes": True},
    "per device": {
        "nodeName": None,
        "perDeviceNodeSelection": True,
        "devices": [a_device("d", nodeName="n1"), a_device("e")],
    },
    "counters beside devices": {"sharedCounters": [_counter_set("s")]},
    "counters beside no devices": {"sharedCounters": [_counter_set("s")], "devices": []},
    "counters": {"devices": None, "sharedCounters": [_counter_set("s", 32)]},
    "9 counter sets": {"devices": None, "sharedCounters": [_counter_set(f"s{i}") for i in range(9)]},
    "33 counters": {"devices": None, "sharedCounters": [_counter_set("s", 33)]},
    "counter set without counters": {"devices": None, "sharedCounters": [{"name": "s"}]},
    "counter set twice": {"devices": None, "sharedCounters": [_counter_set("s"), _counter_set("s")]},
    "counter set bad name": {"devices": None, "sharedCounters": [_counter_set("S")]},
    "fields of 1.37": {"partitionTypeAttribute": "a", "skipNodeOperations": True},
}
"""Merge patches of a valid spec."""

CLASSES: dict[str, Json] = {
    "class": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
    "class empty": {},
    "class selector without cel": {"selectors": [{}]},
    "class 33 selectors": {"selectors": [{"cel": {"expression": "true"}}] * 33},
    "class long expression": {"selectors": [{"cel": {"expression": f"'{'x' * 10300}' != ''"}}]},
    "class extended resource": {"extendedResourceName": "nvidia.com/gpu"},
    "class extended resource bad": {"extendedResourceName": "gpu"},
    "class extended resource native": {"extendedResourceName": "kubernetes.io/gpu"},
    "class config": {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}]},
    "class config without parameters": {"config": [{"opaque": {"driver": "gpu.nvidia.com"}}]},
    "class config without driver": {"config": [{"opaque": {"parameters": {}}}]},
    "class config empty": {"config": [{}]},
}

_EVENT: Json = {
    "metadata": {"name": "e.1", "namespace": "default"},
    "eventTime": "2026-01-02T03:04:05.000006Z",
    "type": "Warning",
    "reason": "GpuLost",
    "action": "Withdraw",
    "note": "gone",
    "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    "reportingController": "gpu.nvidia.com",
    "reportingInstance": "n1",
}

EVENT_CHANGES: dict[str, Json] = {
    "event": {},
    "event without time": {"eventTime": None},
    "event unknown type": {"type": "Bad"},
    "event without action": {"action": ""},
    "event without reason": {"reason": ""},
    "event without controller": {"reportingController": ""},
    "event without instance": {"reportingInstance": ""},
    "event long action": {"action": "x" * 129},
    "event long note": {"note": "ü" * 513},
    "event longest note": {"note": "ü" * 512},
    "event series of one": {"series": {"count": 1, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}},
    "event series": {"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}},
    "event series without time": {"series": {"count": 2}},
}


def an_event(**fields: Any) -> Json:
    return {**copy.deepcopy(_EVENT), **fields}


def requests() -> dict[str, tuple[Resource, Json]]:
    """Name of the case to what is created."""
    cases: dict[str, tuple[Resource, Json]] = {}
    for name, devices in DEVICES.items():
        cases[name] = (RESOURCE_SLICES, a_slice("s", devices=copy.deepcopy(devices)))
    for name, change in SPECS.items():
        body = a_slice("s")
        cases[name] = (RESOURCE_SLICES, {**body, "spec": merge_patch(body["spec"], change)})
    cases["name bad"] = (RESOURCE_SLICES, a_slice("S_1"))
    cases["name missing"] = (RESOURCE_SLICES, a_slice(""))
    for name, spec in CLASSES.items():
        cases[name] = (DEVICE_CLASSES, {"metadata": {"name": "c"}, "spec": spec})
    for name, fields in EVENT_CHANGES.items():
        cases[name] = (EVENTS, {**_EVENT, **fields})
    cases["event of a node elsewhere"] = (EVENTS, {**_EVENT, "metadata": {"name": "e.1", "namespace": "kube-public"}})
    return cases


async def answer(api: KubeApi, resource: Resource, body: Json) -> Json:
    """What a server says to one case: the stored spec (or event), or its complaint."""
    namespace = body["metadata"].get("namespace", "") if resource.namespaced else ""
    try:
        stored = await api.create(resource, body, namespace=namespace, dry_run=True)
    except ApiError as e:
        return {"status": e.status, "reason": e.reason, "message": e.message}
    if resource is EVENTS:
        return {"stored": {key: stored.get(key) for key in sorted({"series", *_EVENT} - {"metadata"})}}
    return {"stored": _forget_times(stored.get("spec", {}))}


def _forget_times(spec: Json) -> Json:
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            if taint["timeAdded"] > "2026-01-03":
                taint["timeAdded"] = "now"
    return spec


async def _record(url: str, token: str) -> None:
    connection = Connection(url, f"Bearer {token}", tls_context(verify=False))
    async with RestKubeApi(FixedConnection(connection)) as api:
        answers = {name: await answer(api, *case) for name, case in requests().items()}
    lines = (f"{json.dumps(name)}: {json.dumps(told, sort_keys=True)}" for name, told in answers.items())
    await asyncio.to_thread(ANSWERS.write_text, "{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(_record(*sys.argv[1:]))
