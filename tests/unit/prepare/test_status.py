"""What `gpuclaim status` shows from the ledger's file alone."""

import json

from kubeletplugin.ledger.model import ClaimRecord, HeldDevice, Hold, Holder, HoldState, Route, Snapshot
from kubeletplugin.prepare import status
from kubeletplugin.prepare.model import ClaimRef


def _gpu(index: int, *, admin: bool = False) -> HeldDevice:
    return HeldDevice(f"gpu-{index}", f"GPU-{index}", f"GPU-{index}", True, admin=admin)


def _hold(number: int, device: HeldDevice, state: HoldState, uid: str, reason: str = "", *pods: str) -> Hold:
    holder = Holder(Route.CLAIM, uid, "ns", f"claim-{uid}")
    return Hold(number, device, holder, state, "2026-01-02T03:04:05+00:00", reason, frozenset(pods))


def test_without_an_agent() -> None:
    record = ClaimRecord("a", "ns", "claim-a", "f", "[]", (), (), "b", 1, "now", frozenset({"pod-2", "pod-1"}))
    snapshot = Snapshot(
        boot_id="boot-1",
        claims=(record,),
        holds=(
            _hold(1, _gpu(0), HoldState.HELD, "a"),
            _hold(2, _gpu(1), HoldState.DRAINING, "gone", "1 process of its former pods still running", "pod-9"),
            _hold(3, _gpu(2, admin=True), HoldState.HELD, "watcher"),
            _hold(4, _gpu(7), HoldState.HELD, "a"),
        ),
        bindings={"gpu-0": "GPU-0", "gpu-1": "GPU-1", "gpu-2": "GPU-2", "gpu-3": "GPU-3"},
    )

    shown = status.render(snapshot)

    assert json.loads(json.dumps(shown)) == shown
    assert {device["name"]: device["state"] for device in shown["devices"]} == {
        "gpu-0": "held",
        "gpu-1": "draining",
        "gpu-2": "free",
        "gpu-3": "free",
        "gpu-7": "held",
    }
    held, draining, watched = (device["holders"] for device in shown["devices"][:3])
    assert held[0]["pods"] == ["pod-1", "pod-2"]
    assert (held[0]["namespace"], held[0]["name"], held[0]["uid"]) == ("ns", "claim-a", "a")
    assert (draining[0]["pods"], draining[0]["reason"]) == (["pod-9"], "1 process of its former pods still running")
    assert watched[0]["admin"] is True
    assert (shown["bootId"], shown["withheld"], shown["waiting"]) == ("boot-1", [], [])


def test_a_device_whose_claim_still_waits_is_being_prepared() -> None:
    snapshot = Snapshot(
        boot_id="boot-1",
        holds=(
            _hold(1, _gpu(0), HoldState.HELD, "a"),
            _hold(2, _gpu(1), HoldState.HELD, "b"),
            _hold(3, _gpu(2), HoldState.DRAINING, "a"),
        ),
    )

    shown = status.render(snapshot, waiting=iter([(ClaimRef("a", "ns", "claim-a"), "write CDI spec: no space")]))

    states = [(device["state"], device["holders"][0]["state"]) for device in shown["devices"]]
    assert states == [("preparing", "preparing"), ("held", "held"), ("draining", "draining")]
    assert [entry["for"] for entry in shown["waiting"]] == ["write CDI spec: no space"]
