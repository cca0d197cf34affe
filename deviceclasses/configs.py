"""Opaque configs: what a claim or class may say to this driver, decoded strictly.

The kinds, fields and outcomes are those of NVIDIA's driver (resource.nvidia.com/v1beta1), so that claims work
unchanged. What is wrong is said with its path and the nearest valid spelling, since the reader is a pod's owner who
sees one event. A config is validated here whether or not its effect is built: ``requested_effects`` says what it
asks for, and who can't do that refuses it.
"""

import difflib
import json
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import pydantic

from deviceclasses import names
from deviceclasses.quantity import QuantityError, parse_quantity

MAX_PARAMETERS_BYTES = 10 * 1024
"""The API's limit for the raw parameters."""

_MEBIBYTE = 1024 * 1024

OTHER_DRIVERS_KINDS = {
    "ComputeDomainChannelConfig": "compute-domain.nvidia.com",
    "ComputeDomainDaemonConfig": "compute-domain.nvidia.com",
}
"""Kinds of the same API group that another driver serves."""


class ConfigError(ValueError):
    """A config that can't be used; the text is for the pod's owner and names the field, the value and the remedy."""


def _check_memory_limit(value: object) -> str:
    """A quantity of at least 1Mi: MPS counts in whole mebibytes. Like the API it takes a bare number, too."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a quantity such as 4Gi")
    text = str(value)
    try:
        quantity = parse_quantity(text)
    except QuantityError as error:
        raise ValueError(str(error)) from error
    if quantity < _MEBIBYTE:
        raise ValueError(f"memory limit {text} is too low, the least is 1Mi")
    return text


def _check_device_key(key: str) -> str:
    if (key.isascii() and key.isdigit()) or key.startswith(("GPU-", "MIG-")):
        return key
    raise ValueError(f"device {key!r} must be an index such as 0 or a UUID such as GPU-...")


MemoryLimit: TypeAlias = Annotated[str, pydantic.BeforeValidator(_check_memory_limit)]
DeviceKey: TypeAlias = Annotated[str, pydantic.AfterValidator(_check_device_key)]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


class TimeSlicingConfig(_Strict):
    """``interval`` unset means the driver's default time slice."""

    interval: Literal["Default", "Short", "Medium", "Long"] | None = None


class MpsConfig(_Strict):
    """Limits for an MPS control daemon; a per-device limit (by index or UUID) goes before the default one."""

    defaultActiveThreadPercentage: Annotated[int, pydantic.Field(ge=0, le=100)] | None = None
    defaultPinnedDeviceMemoryLimit: MemoryLimit | None = None
    defaultPerDevicePinnedMemoryLimit: dict[DeviceKey, MemoryLimit] | None = None
    multiUser: bool | None = None


class GpuSharing(_Strict):
    strategy: Literal["TimeSlicing", "MPS"]
    timeSlicingConfig: TimeSlicingConfig | None = None
    mpsConfig: MpsConfig | None = None

    @pydantic.model_validator(mode="after")
    def _check_strategy(self) -> Self:
        if self.strategy == "TimeSlicing" and self.mpsConfig is not None:
            raise ValueError("mpsConfig can't be used with strategy TimeSlicing, remove it or use MPS")
        if self.strategy == "MPS" and self.timeSlicingConfig is not None:
            raise ValueError("timeSlicingConfig can't be used with strategy MPS, remove it or use TimeSlicing")
        return self


class MigDeviceSharing(_Strict):
    """TimeSlicing is accepted and changes nothing: a partition's time slice isn't settable."""

    strategy: Literal["TimeSlicing", "MPS"]
    mpsConfig: MpsConfig | None = None


class IommuConfig(_Strict):
    backendPolicy: Literal["LegacyOnly", "PreferIommuFD"] = "LegacyOnly"
    enableAPIDevice: bool = False


class _Config(_Strict):
    device_type: ClassVar[str]
    """The value of attribute ``type`` of the devices that it is for."""

    apiVersion: Literal["resource.nvidia.com/v1beta1"] = "resource.nvidia.com/v1beta1"

    def requested_effects(self) -> tuple[str, ...]:
        """What preparing a device with this config has to do besides handing it out, in words."""
        return ()


class GpuConfig(_Config):
    """For full GPUs. Without ``sharing`` compute mode and time slice are left alone."""

    device_type: ClassVar[str] = names.TYPE_GPU
    kind: Literal["GpuConfig"] = "GpuConfig"
    sharing: GpuSharing | None = None

    def requested_effects(self) -> tuple[str, ...]:
        return (self.sharing.strategy,) if self.sharing else ()


class MigDeviceConfig(_Config):
    """For MIG partitions."""

    device_type: ClassVar[str] = names.TYPE_MIG
    kind: Literal["MigDeviceConfig"] = "MigDeviceConfig"
    sharing: MigDeviceSharing | None = None

    def requested_effects(self) -> tuple[str, ...]:
        return ("MPS",) if self.sharing and self.sharing.strategy == "MPS" else ()


class VfioDeviceConfig(_Config):
    """For GPUs that are passed through to a virtual machine."""

    device_type: ClassVar[str] = "vfio"
    kind: Literal["VfioDeviceConfig"] = "VfioDeviceConfig"
    iommu: IommuConfig | None = None

    def requested_effects(self) -> tuple[str, ...]:
        return ("VFIO pass-through",)


DeviceConfig: TypeAlias = GpuConfig | MigDeviceConfig | VfioDeviceConfig

_KINDS: dict[str, type[GpuConfig] | type[MigDeviceConfig] | type[VfioDeviceConfig]] = {
    "GpuConfig": GpuConfig,
    "MigDeviceConfig": MigDeviceConfig,
    "VfioDeviceConfig": VfioDeviceConfig,
}


def decode(parameters: object, where: str) -> DeviceConfig:
    """``parameters`` as JSON gave them; ``where`` is their path and begins every error. Raises ConfigError."""
    if not isinstance(parameters, dict):
        raise ConfigError(f"{where}: must be a JSON object with apiVersion and kind")
    if len(json.dumps(parameters, separators=(",", ":"), ensure_ascii=False).encode()) > MAX_PARAMETERS_BYTES:
        raise ConfigError(f"{where}: must not exceed {MAX_PARAMETERS_BYTES} bytes")
    model = _KINDS[_known_kind(parameters, where)]
    try:
        return model.model_validate(parameters)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False)
        raise ConfigError("; ".join(_describe(item, model, parameters, where) for item in found)) from None


def _known_kind(parameters: dict[str, Any], where: str) -> str:
    api_version = parameters.get("apiVersion")
    if api_version != names.CONFIG_API_VERSION:
        raise ConfigError(f"{where}.apiVersion: must be {names.CONFIG_API_VERSION!r}, not {api_version!r}")
    kind = parameters.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"{where}.kind: must be one of {', '.join(_KINDS)}")
    if kind in OTHER_DRIVERS_KINDS:
        raise ConfigError(
            f"{where}.kind: {kind} is for driver {OTHER_DRIVERS_KINDS[kind]} and not served by this driver, "
            f"{names.DRIVER_NAME}"
        )
    if kind not in _KINDS:
        raise ConfigError(f"{where}.kind: unknown kind {kind!r}{_suggest(kind, _KINDS)}")
    return kind


def _describe(item: Any, model: type[pydantic.BaseModel], parameters: dict[str, Any], where: str) -> str:
    """One of pydantic's errors in our words, with its path as the reader wrote it."""
    location = [part for part in item["loc"] if part != "[key]"]
    path = ".".join((where, *map(str, location)))
    match item["type"]:
        case "extra_forbidden":
            fields = _fields_at(model, location[:-1])
            return f"{path}: unknown field {location[-1]!r}{_suggest(str(location[-1]), fields)}"
        case "missing":
            return f"{path}: must be set"
        case "literal_error":
            allowed = item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            return f"{path}: unknown value {item['input']!r}{_suggest(str(item['input']), allowed)}"
        case "value_error":
            return f"{path}: {item['ctx']['error']}"
        case _:
            return f"{path}: {item['msg'][:1].lower()}{item['msg'][1:]}, not {item['input']!r}"


def _fields_at(model: type[pydantic.BaseModel], location: Iterable[object]) -> tuple[str, ...]:
    """The names that are valid in the object at ``location``."""
    current = model
    for part in location:
        nested = [
            argument
            for argument in getattr(current.model_fields[str(part)].annotation, "__args__", ())
            if isinstance(argument, type) and issubclass(argument, pydantic.BaseModel)
        ]
        current = nested[0]
    return tuple(current.model_fields)


def _suggest(word: str, known: Iterable[str]) -> str:
    candidates = list(known)
    folded = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.7)
    hint = f"did you mean {folded[close[0]]!r}? " if close else ""
    return f", {hint}known are {', '.join(candidates)}"
