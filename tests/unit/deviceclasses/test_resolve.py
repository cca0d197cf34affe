"""Which config wins: tables of allocations."""

from typing import Any

import pytest

from deviceclasses.configs import ConfigError
from deviceclasses.resolve import resolve_configs

API = "resource.nvidia.com/v1beta1"
TYPES = {"gpu-0": "gpu", "gpu-1": "gpu", "gpu-2-mig-1g10gb-19-0": "mig", "gpu-vfio-0": "vfio", "odd-0": "odd"}


def result(request: str, device: str, driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "node-1", "device": device}


def entry(
    source: str,
    kind: str = "GpuConfig",
    *,
    requests: tuple[str, ...] = (),
    driver: str = "gpu.nvidia.com",
    **fields: Any,
) -> dict[str, Any]:
    parameters = {"apiVersion": API, "kind": kind, **fields}
    body: dict[str, Any] = {"source": source, "opaque": {"driver": driver, "parameters": parameters}}
    return {**body, "requests": list(requests)} if requests else body


def interval(value: str) -> dict[str, Any]:
    return {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": value}}}


def resolve(results: list[dict[str, Any]], config: list[dict[str, Any]]) -> list[str]:
    """Per result: its index, its kind and its interval."""
    allocation = {"devices": {"results": results, **({"config": config} if config else {})}}
    found = []
    for resolved in resolve_configs(allocation, lambda _pool, device: TYPES[device]):
        config_json = resolved.config.model_dump()
        sharing = config_json.get("sharing") or {}
        found.append(
            f"{resolved.result_index} {config_json['kind']} {(sharing.get('timeSlicingConfig') or {}).get('interval')}"
        )
    return found


GPU = [result("a", "gpu-0")]
MIG = [result("a", "gpu-2-mig-1g10gb-19-0")]


@pytest.mark.parametrize(
    ("results", "config", "expected"),
    [
        pytest.param(GPU, [], ["0 GpuConfig None"], id="default for a GPU"),
        pytest.param(MIG, [], ["0 MigDeviceConfig None"], id="default for a partition"),
        pytest.param([result("a", "gpu-vfio-0")], [], ["0 VfioDeviceConfig None"], id="default for VFIO"),
        pytest.param(GPU, [entry("FromClass", **interval("Short"))], ["0 GpuConfig Short"], id="class"),
        pytest.param(
            GPU,
            [entry("FromClass", **interval("Short")), entry("FromClaim", **interval("Long"))],
            ["0 GpuConfig Long"],
            id="claim goes before class",
        ),
        pytest.param(
            GPU,
            [entry("FromClaim", **interval("Long")), entry("FromClass", requests=("a",), **interval("Short"))],
            ["0 GpuConfig Long"],
            id="claim goes before class in any order, and before one that names the request",
        ),
        pytest.param(
            GPU,
            [entry("FromClaim", **interval("Short")), entry("FromClaim", **interval("Medium"))],
            ["0 GpuConfig Medium"],
            id="later wins",
        ),
        pytest.param(
            [result("a", "gpu-0"), result("b", "gpu-1")],
            [entry("FromClaim", **interval("Short")), entry("FromClaim", requests=("b",), **interval("Long"))],
            ["0 GpuConfig Short", "1 GpuConfig Long"],
            id="only the named request",
        ),
        pytest.param(
            [result("a/big", "gpu-0")],
            [entry("FromClaim", requests=("a/big",), **interval("Long"))],
            ["0 GpuConfig Long"],
            id="a subrequest by its full name",
        ),
        pytest.param(
            [result("a/big", "gpu-0")],
            [entry("FromClaim", requests=("a",), **interval("Long"))],
            ["0 GpuConfig Long"],
            id="a subrequest by its parent's name",
        ),
        pytest.param(
            [result("a/big", "gpu-0")],
            [entry("FromClaim", requests=("a/small", "big"), **interval("Long"))],
            ["0 GpuConfig None"],
            id="not by another subrequest's name",
        ),
        pytest.param(
            [result("a", "gpu-0"), result("b", "gpu-2-mig-1g10gb-19-0")],
            [entry("FromClaim", "MigDeviceConfig"), entry("FromClass", **interval("Short"))],
            ["0 GpuConfig Short", "1 MigDeviceConfig None"],
            id="a config for all requests is passed over where its kind doesn't fit",
        ),
        pytest.param(
            [result("x", "something", "other.example.com"), result("a", "gpu-0")],
            [entry("FromClaim", "Whatever", driver="other.example.com")],
            ["1 GpuConfig None"],
            id="other drivers' results and configs are left out",
        ),
        pytest.param([], [], [], id="nothing"),
    ],
)
def test_resolve(results: list[dict[str, Any]], config: list[dict[str, Any]], expected: list[str]) -> None:
    assert resolve(results, config) == expected


@pytest.mark.parametrize(
    ("results", "config", "error"),
    [
        pytest.param(
            GPU,
            [entry("FromClaim", "MigDeviceConfig", requests=("a",))],
            r"apply MigDeviceConfig \(claim config status.*config\[0\]\) to device gpu-0 of type gpu, request a",
            id="named request, wrong kind",
        ),
        pytest.param(
            GPU,
            [entry("FromClaim", requests=("b",), shering={})],
            r"claim config status\.allocation\.devices\.config\[0\]\.opaque\.parameters\.shering: unknown field",
            id="invalid, though unused",
        ),
        pytest.param(GPU, [{"source": "FromClaim"}], "only opaque parameters are supported", id="no opaque"),
        pytest.param(GPU, [entry("FromNowhere")], "invalid config source 'FromNowhere'", id="source"),
        pytest.param([result("a", "odd-0")], [], "type 'odd' is unknown", id="unknown type"),
    ],
)
def test_refused(results: list[dict[str, Any]], config: list[dict[str, Any]], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        resolve(results, config)


def test_source_says_where_a_config_was_written() -> None:
    allocation = {"devices": {"results": GPU, "config": [entry("FromClass"), entry("FromClaim")]}}
    (resolved,) = resolve_configs(allocation, lambda _pool, device: TYPES[device])
    assert resolved.source == "claim config status.allocation.devices.config[1]"
    assert (resolved.request, resolved.pool, resolved.device) == ("a", "node-1", "gpu-0")
