"""Settings: which source wins, what a bad one is told, and that what is printed can be read again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.app import settings
from kubeletplugin.app.settings import Effective, ExcludedGpu, Settings
from kubeletplugin.errors import FatalError

DEFAULTS = Settings.model_validate({})
GPU = "GPU-dd56c72b-9079-5745-b2bf-1f280432580f"


def load(*flags: str, env: Mapping[str, str] | None = None) -> Effective:
    effective, warnings = settings.load(flags, env or {})
    assert warnings == []
    return effective


def config_file(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def refusal(flags: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    with pytest.raises(FatalError) as caught:
        settings.load(flags, env or {})
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- precedence ---
@pytest.mark.parametrize("flag", [None, "from-flag", ""])
@pytest.mark.parametrize("variable", [None, "from-env", ""])
@pytest.mark.parametrize("key", [None, "from-file"])
def test_flag_then_variable_then_file_then_default(
    flag: str | None, variable: str | None, key: str | None, tmp_path: Path
) -> None:
    """A value that is set and empty counts as set."""
    path = config_file(tmp_path, "version: v1\n" + (f"nodeName: {key}\n" if key else ""))
    flags = [f"--config={path}"] + ([] if flag is None else [f"--node-name={flag}"])
    effective = load(*flags, env={} if variable is None else {"GPUCLAIM_NODE_NAME": variable})
    wanted = [(flag, "--node-name"), (variable, "GPUCLAIM_NODE_NAME"), (key, str(path)), ("", "default")]
    value, source = next((value, source) for value, source in wanted if value is not None)
    assert effective.settings.node_name == value
    assert effective.sources["node_name"] == source
    assert effective.sources["log_level"] == "default"


def test_a_list_of_a_higher_source_replaces_the_lower_one(tmp_path: Path) -> None:
    path = config_file(tmp_path, "version: v1\ndriverRoots: [/a, /b]\n")
    effective = load("--driver-roots=/c", env={"GPUCLAIM_CONFIG": str(path)})
    assert effective.settings.driver_roots == ("/c",)
    assert load("--driver-roots=", env={"GPUCLAIM_CONFIG": str(path)}).settings.driver_roots == ()
    assert load(env={"GPUCLAIM_CONFIG": str(path), "GPUCLAIM_DRIVER_ROOTS": ""}).settings.driver_roots == ()


@pytest.mark.parametrize("spelling", ["--config=", "--config ", "variable"])
def test_config_file_is_named_by_flag_or_variable(spelling: str, tmp_path: Path) -> None:
    path = config_file(tmp_path, "version: v1\nnodeName: a\n")
    if spelling == "variable":
        effective = load(env={"GPUCLAIM_CONFIG": str(path)})
    else:
        effective = load("--log-level=debug", *f"{spelling}{path}".split(), env={"GPUCLAIM_CONFIG": "/not/there"})
    assert (effective.settings.node_name, effective.config_file) == ("a", path)


def test_an_empty_config_file_with_a_version_changes_nothing(tmp_path: Path) -> None:
    assert load(f"--config={config_file(tmp_path, 'version: v1')}").settings == DEFAULTS


# --- spellings ---
MIG = ("0=1g.10gb,3g.40gb", "1=7g.80gb")
LISTS: list[tuple[str, tuple[str, ...], str, str, Any]] = [
    ("mig", tuple(f"--mig={item}" for item in MIG), "GPUCLAIM_MIG", ";".join(MIG), MIG),
    ("driver_roots", ("--driver-roots", "/a", "--driver-roots=/b"), "GPUCLAIM_DRIVER_ROOTS", "/a;/b", ("/a", "/b")),
    (
        "exclude",
        (f"--exclude={GPU}", "--exclude", "0000:1b:00.0=bad fan, a=b"),
        "GPUCLAIM_EXCLUDE",
        f"{GPU};0000:1b:00.0=bad fan, a=b;",
        (ExcludedGpu(gpu=GPU), ExcludedGpu(gpu="0000:1b:00.0", reason="bad fan, a=b")),
    ),
]


@pytest.mark.parametrize(("name", "flags", "variable", "text", "value"), LISTS, ids=[row[0] for row in LISTS])
def test_a_list_in_its_three_spellings(
    name: str, flags: tuple[str, ...], variable: str, text: str, value: Any, tmp_path: Path
) -> None:
    key = Settings.model_fields[name].alias
    plain = [item.model_dump() if isinstance(item, ExcludedGpu) else item for item in value]
    path = config_file(tmp_path, yaml.safe_dump({"version": "v1", key: plain}))
    for effective in (load(*flags), load(env={variable: text}), load(f"--config={path}")):
        assert getattr(effective.settings, name) == value


def test_an_exclusion_in_a_file_may_be_written_as_a_flag_is(tmp_path: Path) -> None:
    path = config_file(tmp_path, f"version: v1\nexclude: [{GPU}, '{GPU}=hot', {{gpu: '{GPU}'}}]\n")
    found = load(f"--config={path}").settings.exclude
    assert found == (ExcludedGpu(gpu=GPU), ExcludedGpu(gpu=GPU, reason="hot"), ExcludedGpu(gpu=GPU))


def test_every_setting_can_be_a_flag_a_variable_and_a_key() -> None:
    text = settings.help_text()
    for name in Settings.model_fields:
        value = {"log_level": "debug|info|warning|error", "log_format": "text|json"}.get(name, "VALUE")
        assert f"  --{name.replace('_', '-')} {value}" in text
    assert load("--nvml-timeout", "2.5").settings.nvml_timeout == 2.5
    assert load(env={"GPUCLAIM_NVML_TIMEOUT": "2.5"}).settings.nvml_timeout == 2.5


# --- what is printed ---
def test_print_config_says_where_each_value_came_from(tmp_path: Path) -> None:
    path = config_file(tmp_path, "version: v1\nlogFormat: json\n")
    effective = load(f"--config={path}", "--node-name=a", f"--exclude={GPU}=hot", env={"GPUCLAIM_LOG_LEVEL": "debug"})
    lines = list(effective.as_lines())
    assert lines[0] == "version: v1"
    assert "nodeName: a  # --node-name" in lines
    assert f"exclude: [{{gpu: {GPU}, reason: hot}}]  # --exclude" in lines
    assert "logLevel: debug  # GPUCLAIM_LOG_LEVEL" in lines
    assert f"logFormat: json  # {path}" in lines
    assert "cdiDir: /var/run/cdi  # default" in lines
    assert len(lines) == 1 + len(Settings.model_fields)


words = st.text(st.characters(codec="utf-8"), max_size=20)
folders = words.map(lambda word: Path("/") / word.replace("\0", "").lstrip("/"))


@given(
    st.builds(
        Settings,
        node_name=words,
        kubeconfig=words,
        kubelet_root_dir=folders,
        driver_roots=st.lists(words).map(tuple),
        exclude=st.lists(st.builds(ExcludedGpu, gpu=words.filter(bool), reason=words)).map(tuple),
        mig=st.lists(st.sampled_from(MIG)).map(tuple),
        nvml_timeout=st.floats(0.1, 60.0),
        log_level=st.sampled_from(["debug", "error"]),
    )
)
def test_what_is_printed_is_a_config_file_with_the_same_settings(chosen: Settings) -> None:
    text = "\n".join(Effective(chosen, dict.fromkeys(Settings.model_fields, "default")).as_lines())
    content = yaml.safe_load(text)
    assert content.pop("version") == "v1"
    assert Settings(**content) == chosen


def test_what_is_printed_is_read_back_as_a_file(tmp_path: Path) -> None:
    first = load("--node-name=a", "--mig=0=1g.10gb,3g.40gb", "--machine=dgx-h100", f"--exclude={GPU}=hot: very # it is")
    path = config_file(tmp_path, "\n".join(first.as_lines()))
    again = load(f"--config={path}")
    assert again.settings == first.settings
    assert set(again.sources.values()) == {str(path)}


# --- bad input ---
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--node-nam=a"], "unknown flag --node-nam (did you mean --node-name?)"),
        (["--confg=a"], "unknown flag --confg (did you mean --config?)"),
        (["--print-confg"], "unknown flag --print-confg (did you mean --print-config?)"),
        (["--frobnicate"], "unknown flag --frobnicate"),
        (["node-name=a"], "unknown flag node-name (did you mean --node-name?)"),
        (["--node-name"], "flag --node-name needs a value"),
        (["--node-name", "--mig=0=1g.10gb"], "flag --node-name needs a value"),
        (["--node-name=a", "--node-name", "b"], "flag --node-name is given twice"),
        (["--config"], "flag --config needs a value"),
        (["--config="], "flag --config needs a value"),
        (["--config", "--node-name=a"], "flag --config needs a value"),
        (["--config=/a", "--config", "/b"], "flag --config is given twice"),
        (["--config=/not/there"], "read config file /not/there: No such file or directory"),
        (["--config", "/"], "read config file /: Is a directory"),
        (
            ["--log-level=warn"],
            "--log-level: input should be 'debug', 'info', 'warning' or 'error', not 'warn' (did you mean warning?)",
        ),
        (
            ["--log-format=JSON"],
            "--log-format: input should be 'text' or 'json', not 'JSON' (did you mean json?)",
        ),
        (["--nvml-timeout=0"], "--nvml-timeout: input should be greater than 0, not '0'"),
        (["--nvml-timeout", "-1"], "--nvml-timeout: input should be greater than 0, not '-1'"),
        (["--rescan-interval=11"], "--rescan-interval: input should be less than or equal to 10, not '11'"),
        (["--kubelet-root-dir=kubelet"], "--kubelet-root-dir: must be an absolute path, not 'kubelet'"),
        (["--host-root="], "--host-root: must be an absolute path, not ''"),
        (
            ["--exclude==hot"],
            "--exclude[0][gpu]: string should have at least 1 character, not ''",
        ),
    ],
)
def test_bad_flag(flags: list[str], message: str) -> None:
    assert refusal(flags) == message


@pytest.mark.parametrize("value", ["nan", "inf", "five", ""])
def test_bad_number(value: str) -> None:
    assert refusal([f"--nvml-timeout={value}"]).startswith("--nvml-timeout: input should be ")


def test_all_bad_values_are_named_at_once() -> None:
    message = refusal(["--log-level=loud"], {"GPUCLAIM_NVML_TIMEOUT": "x"})
    assert message.startswith("GPUCLAIM_NVML_TIMEOUT: ")
    assert "; --log-level: " in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "config file {path} has no version: write `version: v1`"),
        ("nodeName: a", "config file {path} has no version: write `version: v1`"),
        ("version: v2", "config file {path} has version 'v2': write `version: v1`"),
        ("version: 1", "config file {path} has version 1: write `version: v1`"),
        ("- version: v1", "config file {path} must be a map, not a list"),
        ("just words", "config file {path} must be a map, not a str"),
        ("version: v1\nnodename: a", "unknown key nodename in config file {path} (did you mean nodeName?)"),
        ("version: v1\nnode_name: a", "unknown key node_name in config file {path} (did you mean nodeName?)"),
        ("version: v1\n7: a", "unknown key 7 in config file {path}"),
        ("version: v1\nnodeName: 7", "key nodeName in config file {path}: input should be a valid string, not 7"),
        ("version: v1\nmig: 0=1g.10gb", "key mig in config file {path}: input should be a list, not '0=1g.10gb'"),
        (
            "version: v1\nexclude: [{gpu: a, resaon: b}]",
            "key exclude[0][resaon] in config file {path}: unknown key (did you mean reason?)",
        ),
        ("version: v1\nexclude: [{reason: b}]", "key exclude[0][gpu] in config file {path}: field required, not "),
        ("version: v1\ncdiDir: run/cdi", "key cdiDir in config file {path}: must be an absolute path, not 'run/cdi'"),
        ("version: [", "parse config file {path}: while parsing a flow node"),
        (b"version: v1\nnodeName: \xff", "parse config file {path}: "),
    ],
)
def test_bad_config_file(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert refusal([f"--config={path}"]).startswith(message.format(path=path))


@pytest.mark.parametrize(
    ("variables", "warnings"),
    [
        (
            {"GPUCLAIM_NODE_NAM": "a"},
            ["ignore unknown variable GPUCLAIM_NODE_NAM (did you mean GPUCLAIM_NODE_NAME?)"],
        ),
        (
            {"GPUCLAIM_CONFG": "a"},
            ["ignore unknown variable GPUCLAIM_CONFG (did you mean GPUCLAIM_CONFIG?)"],
        ),
        ({"GPUCLAIM_ZZZ": "a"}, ["ignore unknown variable GPUCLAIM_ZZZ"]),
        ({"GPUCLAIM_SERVICE_HOST": "10.0.0.1", "GPUCLAIM_PORT_8080_TCP": "tcp://10.0.0.1:8080"}, []),
        ({"OTHER": "a", "gpuclaim_node_name": "a"}, []),
    ],
)
def test_unknown_variable_is_a_warning(variables: dict[str, str], warnings: list[str]) -> None:
    """A Service called gpuclaim makes the kubelet set variables that nobody wrote."""
    effective, found = settings.load([], variables)
    assert found == warnings
    assert effective.settings == DEFAULTS


def test_bad_variable_is_named() -> None:
    message = refusal([], {"GPUCLAIM_LOG_LEVEL": "inf"})
    assert message.startswith("GPUCLAIM_LOG_LEVEL: input should be ")
    assert message.endswith("not 'inf' (did you mean info?)")


@pytest.mark.parametrize("uid", ["../../x", "a/b", "a b", "x" * 64])
def test_a_pod_uid_that_would_leave_the_folder_is_refused(uid: str) -> None:
    with pytest.raises(FatalError, match="--pod-uid"):
        settings.load([f"--pod-uid={uid}"], {})


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nnvmlTimeout: 3\nnvmlTimeout: 4\n")
    with pytest.raises(FatalError, match="'nvmlTimeout' is given twice"):
        settings.load([f"--config={config}"], {})


def test_yaml_merges_maps_as_ever(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nexclude:\n- &first {gpu: GPU-1, reason: fan}\n- <<: *first\n  gpu: GPU-2\n")
    loaded = settings.load([f"--config={config}"], {})[0].settings
    assert [(entry.gpu, entry.reason) for entry in loaded.exclude] == [("GPU-1", "fan"), ("GPU-2", "fan")]
