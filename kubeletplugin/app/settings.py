"""The agent's settings: what they are, where each value came from, and errors that name the nearest valid key.

Precedence: flag, then environment (``GPUCLAIM_*``), then config file, then default. One name in three spellings:
``--kubelet-root-dir``, ``GPUCLAIM_KUBELET_ROOT_DIR``, ``kubeletRootDir``. A list is a repeated flag, a variable
with items separated by semicolons, or a YAML list.
"""

import difflib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from kubeletplugin.errors import FatalError
from kubeletplugin.files import read_regular

ENV_PREFIX = "GPUCLAIM_"
CONFIG_VERSION = "v1"
_CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
_OTHER_FLAGS = ("--config", "--print-config", "--help")


class ExcludedGpu(BaseModel):
    """A GPU that the agent leaves alone: ``gpu`` is its UUID or PCI address."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: str = Field(min_length=1)
    reason: str = ""


def _excluded(value: object) -> object:
    if isinstance(value, str):
        gpu, _, reason = value.partition("=")
        return {"gpu": gpu, "reason": reason} if reason else {"gpu": gpu}
    return value


def _absolute(path: Path) -> Path:
    """The kubelet and the runtime are told paths below these, and have working directories of their own."""
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


Folder = Annotated[Path, AfterValidator(_absolute)]


def parse_endpoint(endpoint: str) -> tuple[str | None, int]:
    """Of ``ADDRESS:PORT`` or ``:PORT``, the latter for all addresses (None). ValueError."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError("must be ADDRESS:PORT, or :PORT for all addresses")
    return host.strip("[]") or None, int(port)


def _endpoint(value: str) -> str:
    if value:
        parse_endpoint(value)
    return value


class Settings(BaseModel):
    """Everything that can be configured; a field's description is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    node_name: str = Field("", description="name of the Node object (in a pod: spec.nodeName)")
    pod_uid: str = Field(
        "",
        pattern=r"^[A-Za-z0-9-]{0,63}$",
        description="UID of the agent's pod, part of its socket names; default: made at start",
    )
    kubeconfig: str = Field("", description="kubeconfig file; default: $KUBECONFIG, in-cluster, ~/.kube/config")
    kubelet_root_dir: Folder = Field(Path("/var/lib/kubelet"), description="the kubelet's --root-dir")
    cdi_dir: Folder = Field(Path("/var/run/cdi"), description="folder for CDI specs that the container runtime watches")
    host_root: Folder = Field(Path("/"), description="where the host's root file system is seen by the agent")
    driver_roots: tuple[str, ...] = Field(
        ("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia"),
        description="roots on the host under which the GPU driver may be installed, tried in this order",
    )
    exclude: tuple[Annotated[ExcludedGpu, BeforeValidator(_excluded)], ...] = Field(
        (), description="GPUs to leave alone: UUID or PCI address, optionally =reason"
    )
    machine: str = Field("", description="simulate this machine: a shipped name or a profile file")
    machine_state: str = Field("", description="state file of the simulated machine; default: in the plugin's folder")
    mig: tuple[str, ...] = Field(
        (), description="static MIG layout of the simulated machine: 0=1g.10gb,3g.40gb (repeatable), or a layout file"
    )
    nvml_timeout: float = Field(5.0, gt=0, le=60, description="seconds after which an NVML call counts as hung")
    rescan_interval: float = Field(
        10.0, ge=0.1, le=10, description="seconds between two looks at the hardware; the kubelet trusts a value for 30"
    )
    http_endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        ":8080",
        description="ADDRESS:PORT of /metrics, /healthz and /readyz; :PORT for all addresses, empty for none",
    )
    wake_pods: bool = Field(
        True,
        description="touch pods that wait for the kubelet's next try although one would succeed now",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["text", "json"] = Field("text", description="form of a log line")

    @property
    def plugin_dir(self) -> Path:
        """The driver's own folder, beside which the kubelet expects its socket."""
        return self.kubelet_root_dir / "plugins" / "gpu.nvidia.com"

    @property
    def registry_dir(self) -> Path:
        return self.kubelet_root_dir / "plugins_registry"


@dataclass(frozen=True, slots=True)
class Effective:
    """Settings and, per field, the source of its value: a flag, a variable, a file or ``default``."""

    settings: Settings
    sources: Mapping[str, str]
    config_file: Path | None = None

    def as_lines(self) -> Iterable[str]:
        """YAML that can be used as a config file, each value with its source as a comment."""
        yield f"version: {CONFIG_VERSION}"
        dumped = self.settings.model_dump(mode="json", by_alias=True)
        for name, field in Settings.model_fields.items():
            key = field.alias or name
            text = yaml.safe_dump({key: dumped[key]}, default_flow_style=True, width=10_000).strip()
            yield f"{text.removeprefix('{').removesuffix('}')}  # {self.sources[name]}"


def nearest(word: str, valid: Iterable[str], prefix: str = "") -> str:
    """`` (did you mean X?)``, or nothing when no valid word is near. A prefix that all have makes none nearer."""
    found = difflib.get_close_matches(word.removeprefix(prefix), [name.removeprefix(prefix) for name in valid], n=1)
    return f" (did you mean {prefix}{found[0]}?)" if found else ""


def _is_list(name: str) -> bool:
    annotation = Settings.model_fields[name].annotation
    return get_origin(annotation) is tuple


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _from_flags(arguments: Sequence[str]) -> dict[str, Any]:
    names = {flag_of(name): name for name in Settings.model_fields}
    values: dict[str, Any] = {}
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in names:
            raise FatalError(f"unknown flag {flag}{nearest(flag, [*names, *_OTHER_FLAGS], '--')}")
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise FatalError(f"flag {flag} needs a value")
            value = queue.pop(0)
        name = names[flag]
        if _is_list(name):
            # An empty one makes the list empty, whatever variable or file say.
            values.setdefault(name, []).extend([value] if value else [])
        elif name in values:
            raise FatalError(f"flag {flag} is given twice")
        else:
            values[name] = value
    return values


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Values, and a warning for each variable of ours that means nothing.

    Not an error: a Service called gpuclaim makes the kubelet set GPUCLAIM_SERVICE_HOST and the like.
    """
    names = {ENV_PREFIX + name.upper(): name for name in Settings.model_fields}
    values: dict[str, Any] = {}
    warnings = []
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENV_PREFIX) or variable == _CONFIG_VARIABLE:
            continue
        name = names.get(variable)
        if name is None:
            if "_SERVICE_" not in variable and "_PORT" not in variable:
                warnings.append(
                    f"ignore unknown variable {variable}{nearest(variable, [*names, _CONFIG_VARIABLE], ENV_PREFIX)}"
                )
        else:
            values[name] = [item for item in value.split(";") if item] if _is_list(name) else value
    return values, warnings


class _StrictLoader(yaml.SafeLoader):
    """A key that is there twice means that one of its values is believed in by nobody but its author."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != merge]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(read_regular(path).decode(), Loader=_StrictLoader)
    except OSError as error:
        raise FatalError(f"read config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FatalError(f"parse config file {path}: {' '.join(str(error).split())}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise FatalError(f"config file {path} must be a map, not a {type(content).__name__}")
    version = content.pop("version", None)
    if version != CONFIG_VERSION:
        stated = "has no version" if version is None else f"has version {version!r}"
        raise FatalError(f"config file {path} {stated}: write `version: {CONFIG_VERSION}`")
    names = {field.alias or name: name for name, field in Settings.model_fields.items()}
    for key in content:
        if key not in names:
            raise FatalError(f"unknown key {key} in config file {path}{nearest(str(key), names)}")
    return {names[key]: value for key, value in content.items()}


def _explain(error: ValidationError, sources: Mapping[str, str]) -> str:
    parts = []
    for item in error.errors(include_url=False):
        field, *inner = [str(part) for part in item["loc"]]
        name = next((n for n, f in Settings.model_fields.items() if field in (n, f.alias)), field)
        parts.append(f"{_place(name, sources[name], inner)}: {_fault(name, item)}")
    return "; ".join(parts)


def _place(name: str, source: str, inner: Sequence[str]) -> str:
    where = "".join(f"[{part}]" for part in inner)
    if source.startswith(("--", ENV_PREFIX)):
        return source + where
    return f"key {Settings.model_fields[name].alias}{where} in config file {source}"


def _fault(name: str, item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return f"unknown key{nearest(str(item['loc'][-1]), ExcludedGpu.model_fields)}"
    choices = get_args(Settings.model_fields[name].annotation) if item["type"] == "literal_error" else ()
    hint = nearest(str(item["input"]).lower(), map(str, choices))
    message = item["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
    return f"{message[0].lower()}{message[1:]}, not {item['input']!r}{hint}"


def _take_config(arguments: list[str], default: str) -> str:
    """Takes ``--config FILE`` out of the arguments."""
    found = [index for index, word in enumerate(arguments) if word.partition("=")[0] == "--config"]
    if not found:
        return default
    if len(found) > 1:
        raise FatalError("flag --config is given twice")
    index = found[0]
    _, equals, value = arguments[index].partition("=")
    if not equals:
        value = "".join(arguments[index + 1 : index + 2])
    if not value or (not equals and value.startswith("--")):
        raise FatalError("flag --config needs a value")
    del arguments[index : index + (1 if equals else 2)]
    return value


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Effective, list[str]]:
    """The effective settings and warnings. ``arguments`` may hold ``--config FILE``; FatalError on bad input."""
    rest = list(arguments)
    config = _take_config(rest, environment.get(_CONFIG_VARIABLE, ""))
    from_environment, warnings = _from_environment(environment)
    layers: list[tuple[dict[str, Any], Any]] = []
    if config:
        layers.append((_from_file(Path(config)), lambda name: config))
    layers.append((from_environment, lambda name: ENV_PREFIX + name.upper()))
    layers.append((_from_flags(rest), flag_of))
    values: dict[str, Any] = {}
    sources = dict.fromkeys(Settings.model_fields, "default")
    for layer, source in layers:
        values |= layer
        sources |= {name: source(name) for name in layer}
    try:
        return Effective(Settings(**values), sources, Path(config) if config else None), warnings
    except ValidationError as error:
        raise FatalError(_explain(error, sources)) from error


def help_text() -> str:
    """For a terminal of 80 columns."""
    lines = [
        "Usage: gpuclaim kubeletplugin [FLAGS]",
        "",
        "The node agent. Each flag is also a variable GPUCLAIM_<NAME> and a key of the",
        "config file in camelCase; flag > variable > file. A list is a repeated flag, a",
        "variable with semicolons, or a YAML list.",
        "",
        "  --config FILE",
        *_indented("config file (YAML, `version: v1`)"),
        "  --print-config",
        *_indented("print the effective configuration with the source of each value, and exit"),
    ]
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        shown = shown.lower() if isinstance(default, bool) else shown
        choices = "|".join(get_args(field.annotation)) if get_origin(field.annotation) is Literal else "VALUE"
        lines += [f"  {flag_of(name)} {choices}", *_indented(f"{field.description}" + (f" [{shown}]" if shown else ""))]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, 79, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)
