"""Which opaque config is in force for each device of an allocation.

Pure, over the claim's JSON, so that the node agent, a webhook and the command line agree. The order of precedence is
NVIDIA's driver's: built-in default, then class configs, then claim configs, each in their order, the later one wins.
A config that names requests must fit the kind of device that they got; one for all requests is passed over where it
doesn't fit. Unlike there, a config that names a request of a prioritized list also goes for its subrequests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deviceclasses import names
from deviceclasses.configs import ConfigError, DeviceConfig, GpuConfig, MigDeviceConfig, VfioDeviceConfig, decode

_DEFAULTS: tuple[DeviceConfig, ...] = (GpuConfig(), MigDeviceConfig(), VfioDeviceConfig())


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The config of one allocation result. ``source`` says where it was written, for people; empty for a default."""

    result_index: int
    request: str
    pool: str
    device: str
    config: DeviceConfig
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Candidate:
    requests: tuple[str, ...]
    config: DeviceConfig
    source: str

    def names_request(self, request: str) -> bool:
        return request in self.requests or request.partition("/")[0] in self.requests


def resolve_configs(
    allocation: Mapping[str, Any], device_type: Callable[[str, str], str], *, driver: str = names.DRIVER_NAME
) -> tuple[ResolvedConfig, ...]:
    """One entry per result of ``driver``, in the order of ``allocation`` (a claim's status.allocation).

    ``device_type`` gives the type ("gpu", "mig", ...) of a device by pool and device name. Results and configs of
    other drivers are left out. Raises ConfigError for any config of ``driver`` that is invalid, even if no result
    would use it: a typo that changes nothing today is still one.
    """
    devices = allocation.get("devices", {})
    candidates = _candidates(devices.get("config", ()), driver)
    return tuple(
        _resolve(index, result, device_type(result["pool"], result["device"]), candidates)
        for index, result in enumerate(devices.get("results", ()))
        if result["driver"] == driver
    )


def _candidates(entries: Any, driver: str) -> list[_Candidate]:
    """This driver's configs, highest precedence first."""
    by_source: dict[str, list[_Candidate]] = {"FromClass": [], "FromClaim": []}
    for index, entry in enumerate(entries):
        where = f"status.allocation.devices.config[{index}]"
        opaque = entry.get("opaque")
        if opaque is None:
            raise ConfigError(f"{where}: only opaque parameters are supported by this driver")
        if opaque["driver"] != driver:
            continue
        source = entry.get("source")
        if source not in by_source:
            raise ConfigError(f"{where}.source: invalid config source {source!r}")
        origin = "class" if source == "FromClass" else "claim"
        config = decode(opaque.get("parameters"), f"{origin} config {where}.opaque.parameters")
        by_source[source].append(_Candidate(tuple(entry.get("requests", ())), config, f"{origin} config {where}"))
    return [*reversed(by_source["FromClaim"]), *reversed(by_source["FromClass"])]


def _resolve(index: int, result: Mapping[str, Any], device_type: str, candidates: list[_Candidate]) -> ResolvedConfig:
    request, pool, device = result["request"], result["pool"], result["device"]
    for candidate in candidates:
        fits = candidate.config.device_type == device_type
        if (candidate.requests and not candidate.names_request(request)) or (not candidate.requests and not fits):
            continue
        if not fits:
            raise ConfigError(
                f"apply {candidate.config.kind} ({candidate.source}) to device {device} of type {device_type}, "
                f"request {request}: this kind is for devices of type {candidate.config.device_type}"
            )
        return ResolvedConfig(index, request, pool, device, candidate.config, candidate.source)
    for default in _DEFAULTS:
        if default.device_type == device_type:
            return ResolvedConfig(index, request, pool, device, default)
    raise ConfigError(f"resolve the config of device {device}: type {device_type!r} is unknown to this driver")
