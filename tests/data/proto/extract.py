"""Extracts services, messages and fields from the Go code of Kubernetes' wire APIs into kubernetes.json.

Run by hand when a Kubernetes release is added, with the folder of the module cache that holds k8s.io:
``python tests/data/proto/extract.py "$(go env GOMODCACHE)/k8s.io"``. Only facts are kept: names, numbers, types.
"""

import json
import re
import sys
from pathlib import Path

SOURCES = {
    "dra/v1": "kubelet@v0.37.0/pkg/apis/dra/v1",
    "dra/v1beta1": "kubelet@v0.37.0/pkg/apis/dra/v1beta1",
    "dra_health/v1": "kubelet@v0.37.0/pkg/apis/dra-health/v1",
    "dra_health/v1alpha1": "kubelet@v0.37.0/pkg/apis/dra-health/v1alpha1",
    "pluginregistration/v1": "kubelet@v0.37.0/pkg/apis/pluginregistration/v1",
    "deviceplugin/v1beta1": "kubelet@v0.37.0/pkg/apis/deviceplugin/v1beta1",
    "podresources/v1": "kubelet@v0.37.0/pkg/apis/podresources/v1",
    "runtime/v1": "cri-api@v0.36.3/pkg/apis/runtime/v1",
}
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.M | re.S)
FIELD = re.compile(r'^\t\w+\s+(\S+)\s+`protobuf:"(\w+),(\d+),(\w+),(?:packed,)?name=(\w+)', re.M)
METHOD = re.compile(r'_FullMethodName\s+= "(/[\w.]+/\w+)"')
ENUM = re.compile(r"^\t\w+_(\w+)\s+(HealthStatus) = (\d+)", re.M)


def extract(folder: Path) -> dict[str, object]:
    code = (folder / "api.pb.go").read_text()
    messages = {
        name: {number: f"{type_name(go, label)} {field}" for go, _, number, label, field in FIELD.findall(body)}
        for name, body in STRUCT.findall(code)
        if "protoimpl" in body or "protobuf:" in body
    }
    enums: dict[str, dict[str, int]] = {}
    for value, enum, number in ENUM.findall(code):
        enums.setdefault(enum, {})[value] = int(number)
    methods = sorted(METHOD.findall((folder / "api_grpc.pb.go").read_text()))
    return {"methods": methods, "messages": messages, "enums": enums}


def type_name(go: str, label: str) -> str:
    """``repeated Claim``, ``map[string]Claim``, ``optional string``: a pointer to a scalar is how Go tells presence."""
    if go.startswith("map["):
        return go.replace("*", "")
    name = go.removeprefix("[]").removeprefix("*")
    if label == "rep":
        return f"repeated {name}"
    return f"optional {name}" if go.startswith("*") and name[0].islower() else name


def reachable(api: dict[str, object], roots: set[str]) -> dict[str, object]:
    """Only what the named messages use: the runtime API has hundreds."""
    messages = api["messages"]
    assert isinstance(messages, dict)
    found: set[str] = set()
    todo = set(roots)
    while todo:
        name = todo.pop()
        found.add(name)
        words = {word for text in messages[name].values() for word in re.findall(r"\w+", text)}
        todo |= {word for word in words if word in messages} - found
    return {**api, "messages": {name: messages[name] for name in sorted(found)}}


def main() -> None:
    root = Path(sys.argv[1])
    table = {ours: extract(root / theirs) for ours, theirs in SOURCES.items()}
    runtime = reachable(table["runtime/v1"], {"VersionRequest", "VersionResponse", "StatusRequest", "StatusResponse"})
    table["runtime/v1"] = {
        **runtime,
        "methods": ["/runtime.v1.RuntimeService/Status", "/runtime.v1.RuntimeService/Version"],
        "enums": {},
    }
    target = Path(__file__).with_name("kubernetes.json")
    target.write_text(json.dumps({"sources": SOURCES, "apis": table}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
