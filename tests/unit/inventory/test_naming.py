"""Names bound to UUIDs: never two devices of one name, never a name in use that moves."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.inventory import naming
from kubeletplugin.inventory.model import Device, DeviceKind

A, B, C = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abc")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def gpu(uuid: str, minor: int) -> Device:
    return Device(naming.gpu_name(minor), DeviceKind.GPU, uuid, uuid, minor, minor, f"0000:{minor:02x}:00.0", {}, {})


@pytest.mark.parametrize(
    ("devices", "bindings", "referenced", "names", "after"),
    [
        pytest.param([(A, 0), (B, 1)], {}, "", {A: "gpu-0", B: "gpu-1"}, {"gpu-0": A, "gpu-1": B}, id="first start"),
        pytest.param(
            [(A, 1), (B, 0)],
            {"gpu-0": A, "gpu-1": B},
            "",
            {A: "gpu-1", B: "gpu-0"},
            {"gpu-1": A, "gpu-0": B},
            id="minors swapped, nobody cares",
        ),
        pytest.param(
            [(A, 1), (B, 0)],
            {"gpu-0": A, "gpu-1": B},
            "gpu-0",
            {A: "gpu-0", B: "gpu-0-bbbb"},
            {"gpu-0": A, "gpu-0-bbbb": B},
            id="minors swapped, one in use",
        ),
        pytest.param(
            [(A, 1), (B, 0)],
            {"gpu-0": A, "gpu-1": B},
            "gpu-0 gpu-1",
            {A: "gpu-0", B: "gpu-1"},
            {"gpu-0": A, "gpu-1": B},
            id="minors swapped, both in use",
        ),
        pytest.param(
            [(C, 0), (B, 1)],
            {"gpu-0": A, "gpu-1": B},
            "gpu-0",
            {C: "gpu-0-cccc", B: "gpu-1"},
            {"gpu-0": A, "gpu-0-cccc": C, "gpu-1": B},
            id="board swapped while its name is in use",
        ),
        pytest.param(
            [(C, 0), (B, 1)],
            {"gpu-0": A, "gpu-0-cccc": C, "gpu-1": B},
            "",
            {C: "gpu-0", B: "gpu-1"},
            {"gpu-0": C, "gpu-1": B},
            id="the old binding ended",
        ),
        pytest.param(
            [(C, 0)],
            {"gpu-0": A, "gpu-0-cccc": C},
            "gpu-0-cccc",
            {C: "gpu-0-cccc"},
            {"gpu-0-cccc": C},
            id="the newcomer's own name is in use",
        ),
        pytest.param(
            [(C, 0)],
            {"gpu-0": A, "gpu-0-cccc": B},
            "gpu-0 gpu-0-cccc",
            {C: "gpu-0-cccccccc"},
            {"gpu-0": A, "gpu-0-cccc": B, "gpu-0-cccccccc": C},
            id="the same four digits",
        ),
        pytest.param(
            [(A, 0)],
            {"gpu-0": A, "gpu-5": A},
            "gpu-0 gpu-5",
            {A: "gpu-0"},
            {"gpu-0": A, "gpu-5": A},
            id="two names of one device in use",
        ),
        pytest.param([], {"gpu-0": A, "gpu-1": B}, "gpu-1", {}, {"gpu-1": B}, id="all gone"),
    ],
)
def test_assign(
    devices: list[tuple[str, int]],
    bindings: dict[str, str],
    referenced: str,
    names: dict[str, str],
    after: dict[str, str],
) -> None:
    result = naming.assign([gpu(*device) for device in devices], bindings, frozenset(referenced.split()))
    assert (dict(result.names), dict(result.bindings)) == (names, after)


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.10gb", "gpu-0-mig-1g10gb-19-3"),
        ("1g.10gb+me", "gpu-0-mig-1g10gb-me-19-3"),
        ("1g.24gb+me.all", "gpu-0-mig-1g24gb-meall-19-3"),
        ("1g.24gb-me", "gpu-0-mig-1g24gb-me-19-3"),
    ],
)
def test_mig_names(profile: str, name: str) -> None:
    assert naming.mig_name(0, profile, 19, 3) == name


UUIDS = st.sampled_from([f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in (0, 1, 0x10000, 0x10001, 2, 3)])
STEPS = st.lists(
    st.tuples(
        st.dictionaries(UUIDS, st.integers(0, 3), max_size=6),
        st.sets(st.integers(0, 5)),
    ),
    max_size=8,
)


@given(STEPS)
def test_no_two_devices_share_a_name_and_no_name_in_use_moves(steps: list[tuple[dict[str, int], set[int]]]) -> None:
    bindings: dict[str, str] = {}
    for present, in_use in steps:
        referenced = frozenset(name for number, name in enumerate(sorted(bindings)) if number in in_use)
        before = {name: bindings[name] for name in referenced}
        result = naming.assign([gpu(uuid, minor) for uuid, minor in present.items()], bindings, referenced)
        assert set(result.names) == set(present)
        assert len(set(result.names.values())) == len(present)
        assert all(result.bindings[name] == uuid for uuid, name in result.names.items())
        assert before.items() <= result.bindings.items()
        for name, uuid in before.items():
            assert uuid not in present or result.bindings[result.names[uuid]] == uuid
            assert uuid not in present or result.names[uuid] in referenced, name
        assert all(LABEL.fullmatch(name) for name in result.bindings)
        bindings = dict(result.bindings)


@given(STEPS)
def test_names_return_to_the_minors_when_nothing_is_in_use(steps: list[tuple[dict[str, int], set[int]]]) -> None:
    bindings: dict[str, str] = {}
    for present, in_use in steps:
        referenced = frozenset(name for number, name in enumerate(sorted(bindings)) if number in in_use)
        bindings = dict(
            naming.assign([gpu(uuid, minor) for uuid, minor in present.items()], bindings, referenced).bindings
        )
    result = naming.assign([gpu(A, 0), gpu(B, 1)], bindings, frozenset())
    assert dict(result.bindings) == {"gpu-0": A, "gpu-1": B}
