"""The kubelet's list of claims: as real kubelets wrote it, and what counts as unreadable."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.prepare.kubelet_state import KubeletClaims, KubeletStateFile, parse

CAPTURED = Path(__file__).parent / "data" / "dra_manager_state"
ONE_GPU = "fb423b22-f886-4ddf-ace8-8b4f037b481a"
SHARED = "82d152a2-d8a3-479a-a9e7-26161833d98a"
TWO = "24c3c286-c527-45bc-9db1-161760d2c046"


def written(claims: Any, *, kind: str = "DRACheckpoint") -> bytes:
    data = json.dumps({"kind": kind, "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": claims})
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}).encode()


def entry(**more: Any) -> dict[str, Any]:
    return {"ClaimUID": "u", "ClaimName": "c", "Namespace": "ns", "PodUIDs": {"p": {}}, "DriverState": {}} | more


def test_what_a_real_kubelet_wrote() -> None:
    state = parse(CAPTURED.read_bytes())

    assert state.unreadable == ""
    assert set(state.claims) == {ONE_GPU, SHARED, TWO}
    assert (state.claims[ONE_GPU].namespace, state.claims[ONE_GPU].name) == ("default", "one-gpu")
    assert state.pods(SHARED) == {"4049af54-aa39-4df3-bd30-b9ed61913663", "d5bee5cd-8239-4e3b-9778-8b09f26a7554"}
    assert state.cdi_names(SHARED) == (f"{SHARED}-gpu-7",)
    assert state.cdi_names(TWO) == (f"{TWO}-gpu-3", f"{TWO}-gpu-4", f"{TWO}-gpu-5")
    assert state.lists(ONE_GPU)
    assert not state.lists("other")
    assert (state.pods("other"), state.cdi_names("other")) == (frozenset(), ())


@pytest.mark.parametrize(("release", "claims"), [("1.34.4", 8), ("1.37.2", 2)])
def test_what_an_older_and_a_newer_kubelet_wrote(release: str, claims: int) -> None:
    """1.34 has no share id in it; the layout is the same."""
    text = CAPTURED.with_name(f"{CAPTURED.name}-{release}").read_bytes()
    state = parse(text)

    assert state.unreadable == ""
    assert len(state.claims) == claims
    for uid, claim in state.claims.items():
        assert claim.pods and [name.rpartition("-gpu-")[0] for name in claim.cdi_names] == [uid]
        assert parse(text, uid).claims == {uid: claim}


def test_one_claim_is_read_alone_where_the_layout_is_the_known_one() -> None:
    whole = parse(CAPTURED.read_bytes())
    for uid in (ONE_GPU, SHARED, TWO):
        assert parse(CAPTURED.read_bytes(), uid) == KubeletClaims({uid: whole.claims[uid]})
    assert parse(CAPTURED.read_bytes(), "other") == whole


def test_one_claim_in_another_layout_is_found_all_the_same() -> None:
    """Spaces after separators: what one claim is looked for by doesn't match, so all are read."""
    text = written([entry(), entry(ClaimUID="v")])
    assert set(parse(text, "u").claims) == {"u", "v"}


def test_one_claim_whose_entry_has_another_shape_is_unreadable() -> None:
    data = json.loads(CAPTURED.read_bytes())["Data"].replace('"PodUIDs"', '"Pods"')
    state = parse(json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}).encode(), ONE_GPU)
    assert "PodUIDs" in state.unreadable


def test_other_kinds_of_cdi_ids_and_unknown_fields_are_passed_over() -> None:
    ids = ["k8s.gpu.nvidia.com/driver=all", "k8s.gpu.nvidia.com/claim=u-gpu-0", "vendor.example/nic=u"]
    devices = [{"PoolName": "n", "DeviceName": "gpu-0", "CDIDeviceIDs": ids, "Novelty": 1}]
    driver_state = {"gpu.nvidia.com": {"Devices": devices}, "nic.example.com": {"Devices": None}}
    state = parse(written([entry(DriverState=driver_state, Novelty=2)]))
    assert state.cdi_names("u") == ("u-gpu-0",)


@pytest.mark.parametrize("claims", [None, []])
def test_an_empty_list_lists_nothing(claims: Any) -> None:
    state = parse(written(claims))
    assert (state.unreadable, state.lists("u")) == ("", False)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        CAPTURED.read_bytes()[:-40],
        CAPTURED.read_bytes().replace(b"gpu-2", b"gpu-3"),
        written([], kind="Other"),
        written([{"ClaimUID": "u"}]),
        written("text"),
        written([entry(DriverState=["gpu.nvidia.com"])]),
    ],
)
def test_what_cannot_be_read_lists_everything(text: bytes) -> None:
    state = parse(text)
    assert state.unreadable
    assert state.lists("any claim")
    assert state.claims == {}


def test_the_file_of_a_kubelet(tmp_path: Path) -> None:
    file = KubeletStateFile(tmp_path)
    assert file.read().unreadable == ""
    assert not file.read().lists("u")
    file.path.write_bytes(written([entry()]))
    assert file.read().lists("u")
    file.path.unlink()
    file.path.mkdir()
    assert "Is a directory" in file.read().unreadable


def test_a_kubelet_root_that_is_not_there_is_our_own_blindness(tmp_path: Path) -> None:
    assert KubeletStateFile(tmp_path / "missing").read().lists("u")


def compact(claims: Any, **more: Any) -> bytes:
    """As the kubelet writes it, without spaces."""
    inner = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": claims}
    data = json.dumps(inner | more, separators=(",", ":"))
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}).encode()


@pytest.mark.parametrize(
    "states",
    [
        [["u"], ["u", "v"], ["v"], []],
        [[], ["u"], ["u"]],
    ],
)
def test_a_file_that_is_read_again_and_again(tmp_path: Path, states: list[list[str]]) -> None:
    """What was known of an entry counts only as long as the entry reads the same."""
    file = KubeletStateFile(tmp_path)
    for number, uids in enumerate(states):
        text = compact([entry(ClaimUID=uid, PodUIDs={f"p{number}": {}}) for uid in uids])
        file.path.write_bytes(text)
        assert file.read() == parse(text)
        assert {uid: claim.pods for uid, claim in file.read().claims.items()} == {
            uid: frozenset({f"p{number}"}) for uid in uids
        }


@pytest.mark.parametrize("name", ['{"ClaimUID":"x"}', '},{"ClaimUID":"', "]}"])
def test_a_name_that_looks_like_an_entry(name: str) -> None:
    state = parse(compact([entry(ClaimName=name), entry(ClaimUID="v")]))
    assert {uid: claim.name for uid, claim in state.claims.items()} == {"u": name, "v": "c"}


def test_what_follows_the_list_is_no_claim() -> None:
    """A newer kubelet may write more behind it."""
    assert set(parse(compact([entry(), entry(ClaimUID="v")], More=[1])).claims) == {"u", "v"}


def test_an_entry_that_was_cut_is_unreadable() -> None:
    data = json.loads(compact([entry(), entry(ClaimUID="v")]))["Data"].replace('"Namespace":"ns",', "", 1)
    assert "Namespace" in parse(json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}).encode()).unreadable
