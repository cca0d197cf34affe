"""Opaque configs: the peer's outcomes, and errors that a pod's owner can act on."""

from typing import Any

import pytest

from deviceclasses.configs import ConfigError, GpuConfig, MigDeviceConfig, VfioDeviceConfig, decode

API = "resource.nvidia.com/v1beta1"


def config(kind: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, **fields}


def mps(**fields: Any) -> dict[str, Any]:
    return config(sharing={"strategy": "MPS", "mpsConfig": fields})


@pytest.mark.parametrize(
    ("parameters", "effects"),
    [
        (config(), ()),
        (config(sharing=None), ()),
        (config(sharing={"strategy": "TimeSlicing"}), ("TimeSlicing",)),
        (config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}), ("TimeSlicing",)),
        (config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}), ("TimeSlicing",)),
        (config(sharing={"strategy": "MPS"}), ("MPS",)),
        (mps(), ("MPS",)),
        (mps(defaultActiveThreadPercentage=0), ("MPS",)),
        (mps(defaultActiveThreadPercentage=100, multiUser=True), ("MPS",)),
        (mps(defaultPinnedDeviceMemoryLimit="1Mi"), ("MPS",)),
        (mps(defaultPinnedDeviceMemoryLimit=1048576), ("MPS",)),
        (mps(defaultPerDevicePinnedMemoryLimit={"0": "10Gi", "GPU-4404041a": "1.5Gi"}), ("MPS",)),
        (config("MigDeviceConfig"), ()),
        (config("MigDeviceConfig", sharing={"strategy": "TimeSlicing"}), ()),
        (config("MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": {}}), ("MPS",)),
        (config("VfioDeviceConfig"), ("VFIO pass-through",)),
        (
            config("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}),
            ("VFIO pass-through",),
        ),
    ],
)
def test_accepted(parameters: dict[str, Any], effects: tuple[str, ...]) -> None:
    assert decode(parameters, "p").requested_effects() == effects


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        (None, "p: must be a JSON object with apiVersion and kind"),
        ([], "p: must be a JSON object with apiVersion and kind"),
        ({}, f"p.apiVersion: must be '{API}', not None"),
        ({"apiVersion": "gpu.nvidia.com/v1alpha1", "kind": "GpuConfig"}, f"p.apiVersion: must be '{API}', not"),
        ({"apiVersion": API}, "p.kind: must be one of GpuConfig, MigDeviceConfig, VfioDeviceConfig"),
        (config("TpuConfig"), "p.kind: unknown kind 'TpuConfig', did you mean 'GpuConfig'?"),
        (
            config("ComputeDomainChannelConfig", domainID="x"),
            "p.kind: ComputeDomainChannelConfig is for driver compute-domain.nvidia.com and not served by this driver",
        ),
        (config(shering={}), "p.shering: unknown field 'shering', did you mean 'sharing'?"),
        (config(Sharing={}), "p.Sharing: unknown field 'Sharing', did you mean 'sharing'?"),
        (config(sharing={}), "p.sharing.strategy: must be set"),
        (config(sharing={"strategy": "Mps"}), "p.sharing.strategy: unknown value 'Mps', did you mean 'MPS'?"),
        (config(sharing=[]), "p.sharing: "),
        (
            config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Lon"}}),
            "interval: unknown value 'Lon', did you mean 'Long'? known are Default, Short, Medium, Long",
        ),
        (
            config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"intervall": "Long"}}),
            "p.sharing.timeSlicingConfig.intervall: unknown field 'intervall', did you mean 'interval'?",
        ),
        (
            config(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}),
            "p.sharing: mpsConfig can't be used with strategy TimeSlicing",
        ),
        (
            config(sharing={"strategy": "MPS", "timeSlicingConfig": {}}),
            "p.sharing: timeSlicingConfig can't be used with strategy MPS",
        ),
        (mps(defaultActiveThreadPercentage=-1), "p.sharing.mpsConfig.defaultActiveThreadPercentage: "),
        (mps(defaultActiveThreadPercentage=101), "less than or equal to 100, not 101"),
        (mps(defaultActiveThreadPercentage="50"), "valid integer, not '50'"),
        (mps(defaultActiveThreadPercentage=True), "valid integer, not True"),
        (mps(multiUser="yes"), "valid boolean, not 'yes'"),
        (
            mps(defaultPinnedDeviceMemoryLimit="1023Ki"),
            "p.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: memory limit 1023Ki is too low, the least is 1Mi",
        ),
        (mps(defaultPinnedDeviceMemoryLimit="10GB"), "unknown suffix 'GB'"),
        (mps(defaultPinnedDeviceMemoryLimit=[1]), "must be a quantity such as 4Gi"),
        (
            mps(defaultPerDevicePinnedMemoryLimit={"0": "1"}),
            "p.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0: memory limit 1 is too low",
        ),
        (mps(defaultPerDevicePinnedMemoryLimit={"gpu-0": "1Gi"}), "device 'gpu-0' must be an index such as 0"),
        (
            config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
            "p.sharing.timeSlicingConfig: unknown field 'timeSlicingConfig', known are strategy, mpsConfig",
        ),
        (config("VfioDeviceConfig", iommu={"backendPolicy": "Legacy"}), "did you mean 'LegacyOnly'?"),
        (mps(defaultPerDevicePinnedMemoryLimit={str(i): "1Gi" for i in range(2000)}), "p: must not exceed 10240 bytes"),
    ],
)
def test_refused(parameters: object, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decode(parameters, "p")
    assert error in str(raised.value)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        decode(config(sharing={"strategy": "MPS", "mpsConfig": {"multiuser": True}}, foo=1), "p")
    assert "p.sharing.mpsConfig.multiuser: unknown field" in str(raised.value)
    assert "p.foo: unknown field" in str(raised.value)


def test_values_are_kept() -> None:
    decoded = decode(config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}), "p")
    assert isinstance(decoded, GpuConfig)
    assert decoded.sharing and decoded.sharing.timeSlicingConfig
    assert decoded.sharing.timeSlicingConfig.interval == "Short"
    assert isinstance(decode(config("MigDeviceConfig"), "p"), MigDeviceConfig)
    assert isinstance(decode(config("VfioDeviceConfig"), "p"), VfioDeviceConfig)
