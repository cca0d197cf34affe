"""CEL on devices: a corpus in the style of the scheduler's own tests.

Every outcome is the one of Kubernetes 1.36's own evaluator (k8s.io/dynamic-resource-allocation/cel), which was run over
the same expressions; only ``includes`` and an expression that is too long fail elsewhere there.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from allocator.cel import CelCompileError, CelRuntimeError, compile_selector

GPU: dict[str, Any] = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "index": {"int": 3},
        "eccEnabled": {"bool": True},
        "driverVersion": {"version": "580.105.8"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:4c"},
    },
    "capacity": {"memory": {"value": "81559Mi"}, "example.com/slots": {"value": "7"}},
}
A = "device.attributes['gpu.nvidia.com']"
C = "device.capacity['gpu.nvidia.com']"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("true", True),
        ("false", False),
        ("device.driver == 'gpu.nvidia.com'", True),
        ("device.driver == ''", False),
        ("device.allowMultipleAllocations", False),
        # names and domains
        (f"{A}.type == 'gpu'", True),
        (f"{A}['type'] == 'gpu'", True),
        ('device.attributes["gpu.nvidia.com"]["type"] == "gpu"', True),
        ("device.attributes[device.driver].type == 'gpu'", True),
        ("device.attributes[ 'gpu.' + 'nvidia.com' ].type == 'gpu'", True),
        ("device . attributes ['gpu.nvidia.com'].type == 'gpu'", True),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:4c'", True),
        ("'gpu.nvidia.com' in device.attributes", True),
        ("'no.such.domain' in device.attributes", False),
        ("'resource.kubernetes.io' in device.capacity", False),
        (f"'type' in {A}", True),
        ("'type' in device.attributes['no.such.domain']", False),
        (f"has({A}.type)", True),
        (f"has({A}.nothing)", False),
        ("has(device.attributes['no.such.domain'].type)", False),
        ("has(device.attributes['no.such.domain'].type) && device.attributes['no.such.domain'].type == 'x'", False),
        ("has(device.attributes) && has( device . capacity ) && has(device.driver)", True),
        ("has(device.allowMultipleAllocations)", True),
        ("'has(device.driver)' == 'true'", False),
        (f"{A}.?nothing.orValue('x') == 'x'", True),
        ("device.attributes[?'no.such.domain'].hasValue()", True),
        ("device.attributes[?'no.such.domain'].?type.hasValue()", False),
        ("device.attributes[ ?'gpu.nvidia.com'].?type.orValue('') == 'gpu'", True),
        (f"cel.bind(dra, {A}, dra.type == 'gpu' && dra.index == 3)", True),
        ("device.attributes.exists(domain, domain == 'resource.kubernetes.io')", True),
        (f"size({C}) == 1", True),
        # && and || absorb errors
        ("device.driver == 'other' && device.attributes['other'].type == 'gpu'", False),
        ("device.attributes['other'].type == 'gpu' && device.driver == 'other'", False),
        ("device.attributes['other'].type == 'gpu' || device.driver == 'gpu.nvidia.com'", True),
        # values
        (f"{A}.eccEnabled", True),
        (f"!{A}.eccEnabled", False),
        (f"{A}.index > 2 && {A}.index + 1 == 4", True),
        (f"{A}.index in [1, 3]", True),
        (f"{A}.productName.lowerAscii().matches('^nvidia.*h100.*$')", True),
        (f"{A}.productName.contains('H100') && {A}.productName.startsWith('NVIDIA')", True),
        (f"{A}.productName.split(' ')[1] == 'H100'", True),
        (f"{A}.type == 3", False),
        # text that looks like code stays text
        ("\"device.attributes['x']\" == \"device.attributes['x']\"", True),
        ("r'\\[' == '\\\\['", True),
        ("'''it's [''' != 'x' // device.attributes['y'", True),
        # quantities
        (f"{C}.memory.compareTo(quantity('40Gi')) >= 0", True),
        (f"{C}.memory.compareTo(quantity('81559Mi')) == 0", True),
        (f"{C}.memory == quantity('81559Mi')", True),
        (f"{C}.memory == quantity('83516416Ki')", True),
        (f"{C}.memory.isGreaterThan(quantity('100Gi'))", False),
        (f"{C}.memory.isLessThan(quantity('1e12'))", True),
        (f"{C}.memory.asInteger() == 81559 * 1024 * 1024", True),
        ("device.capacity['example.com'].slots.isInteger()", True),
        ("quantity('500m').isInteger()", False),
        ("quantity('50k').add(quantity('20k')) == quantity('70k')", True),
        ("quantity('50k').add(20).sub(quantity('100k')).sub(-50000) == quantity('20')", True),
        ("quantity('500m').asApproximateFloat() == 0.5", True),
        ("sign(quantity('-1')) == -1", True),
        ("isQuantity('1.3Gi') && !isQuantity('1,3Gi') && !isQuantity('200K')", True),
        # versions
        (f"{A}.driverVersion.compareTo(semver('560.0.0')) > 0", True),
        (f"{A}.driverVersion.isGreaterThan(semver('580.105.8'))", False),
        (f"{A}.driverVersion.isLessThan(semver('580.105.10'))", True),
        (f"{A}.driverVersion.major() == 580 && {A}.driverVersion.minor() == 105", True),
        (f"{A}.driverVersion.patch() == 8", True),
        (f"{A}.driverVersion == semver('580.105.08', true)", True),
        ("isSemver('1.0.0') && !isSemver('535.104.05') && isSemver('535.104.05', true)", True),
    ],
)
def test_value(expression: str, expected: bool) -> None:
    assert compile_selector(expression).matches("gpu.nvidia.com", GPU) is expected


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        (f"{A}.vendor == 'x'", "no such key: vendor"),
        ("device.attributes['no.such.domain'].noSuchAttr == 1", "no such key: noSuchAttr"),
        ("device.attributes['no.such.domain']['noSuchAttr'].isGreaterThan(quantity('0'))", "no such key: noSuchAttr"),
        ("device.capacity['no.such.domain'].memory.compareTo(quantity('1')) > 0", "no such key: memory"),
        (f"{A}.memory == '80Gi'", "no such key: memory"),
        (f"{A}.index", "result is 3, not a bool"),
        (f"{A}.type.compareTo(quantity('1')) > 0", "No matching overloads"),
        (f"{A}.index > '3'", "No matching overloads"),
        (f"{A}.driverVersion.compareTo(quantity('1')) > 0", "a quantity and a version don't go together"),
        (f"{C}.memory.compareTo(quantity('40GB')) > 0", "unknown suffix 'GB'"),
        (f"{A}.driverVersion.compareTo(semver('535.104.05')) > 0", "without leading zeros"),
        ("quantity('500m').asInteger() == 0", "cannot convert value to integer"),
    ],
)
def test_runtime_error(expression: str, error: str) -> None:
    with pytest.raises(CelRuntimeError, match="evaluate CEL on device gpu-0") as raised:
        compile_selector(expression).matches("gpu.nvidia.com", GPU)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("?!", "Syntax error"),
        ("1", "must evaluate to bool, not int"),
        ("'true'", "must evaluate to bool, not string"),
        ("device.capacity['gpu.nvidia.com'].memory", "must evaluate to bool"),
        ("device.atributes['x'].y", "undeclared reference"),
        ("gpu == 1", "undeclared reference to 'gpu'"),
        ("has(device.nothing)", "undeclared reference"),
        # The scheduler takes these; here they are refused rather than answered wrongly.
        ("dyn(device).driver == 'gpu.nvidia.com'", "undeclared reference to 'device'"),
        ("device == device", "undeclared reference to 'device'"),
        ("cel.bind(d, device, d.driver == 'gpu.nvidia.com')", "undeclared reference to 'device'"),
        (f"{C}.memory > 40", "no matching overload"),
        (f"{C}.memory.compareTo('40Gi') > 0", "no matching overload"),
        ("true ? 1 : true", "no matching overload"),
        (f"{A}.names.includes('fish')", "undeclared reference to 'includes'"),
        ("'" + "x" * 10241 + "' == ''", "must not exceed 10240 bytes"),
    ],
)
def test_compile_error(expression: str, error: str) -> None:
    with pytest.raises(CelCompileError) as raised:
        compile_selector(expression)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("attributes", "error"),
    [({"names": {"strings": ["a"]}}, "attribute names: unsupported"), ({"v": {"version": "1.02.3"}}, "leading zeros")],
)
def test_a_device_with_a_value_that_cant_be_read_fails_every_expression(
    attributes: Mapping[str, Any], error: str
) -> None:
    with pytest.raises(CelRuntimeError, match=error):
        compile_selector("true").matches("gpu.nvidia.com", {"name": "gpu-0", "attributes": attributes})


def test_a_bare_device_has_empty_maps() -> None:
    assert compile_selector("size(device.attributes) == 0 && size(device.capacity) == 0").matches("d", {"name": "x"})
