"""Our wire contracts against what Kubernetes' own Go code says (tests/data/proto, made by extract.py there)."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

REPOSITORY = Path(__file__).parents[2]
TABLE = json.loads((REPOSITORY / "tests/data/proto/kubernetes.json").read_text())["apis"]
SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def load(api: str) -> ModuleType:
    return importlib.import_module(f"kubeletplugin.pb.{api.replace('/', '.')}.api_pb2")


def base_type(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return str(field.message_type.name)
    if field.enum_type is not None:
        return str(field.enum_type.name)
    return SCALARS[field.type]


def field_text(field: FieldDescriptor) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        keys, values = message.fields_by_name["key"], message.fields_by_name["value"]
        return f"map[{base_type(keys)}]{base_type(values)} {field.name}"
    optional = message is None and field.containing_oneof is not None
    return f"{'repeated ' if field.is_repeated else ''}{'optional ' if optional else ''}{base_type(field)} {field.name}"


def fields(message: Descriptor) -> dict[str, str]:
    return {str(field.number): field_text(field) for field in message.fields}


@pytest.mark.parametrize("api", sorted(TABLE))
def test_messages_and_enums_are_those_of_kubernetes(api: str) -> None:
    file: FileDescriptor = load(api).DESCRIPTOR
    assert {name: fields(message) for name, message in file.message_types_by_name.items()} == TABLE[api]["messages"]
    enums = {
        name: {value.name: value.number for value in enum.values} for name, enum in file.enum_types_by_name.items()
    }
    assert enums == TABLE[api]["enums"]


@pytest.mark.parametrize("api", sorted(TABLE))
def test_methods_are_those_of_kubernetes(api: str) -> None:
    file: FileDescriptor = load(api).DESCRIPTOR
    methods = [
        f"/{service.full_name}/{method.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    ]
    assert sorted(methods) == TABLE[api]["methods"]


def test_every_proto_file_is_checked_or_ours() -> None:
    root = REPOSITORY / "proto"
    found = {str(path.parent.relative_to(root)) for path in root.rglob("*.proto")}
    assert found - {"instance/v1"} == set(TABLE)


def test_stubs_are_up_to_date() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    check = [sys.executable, str(REPOSITORY / "proto/generate.py"), "--check"]
    result = subprocess.run(check, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
