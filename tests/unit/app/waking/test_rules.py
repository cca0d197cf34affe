"""When a pod is woken: tables over what is known of it."""

from typing import Any

import pytest

from kubeletplugin.app.waking.rules import Sight, Verdict, has_had_its_time, judge
from kubeletplugin.app.watch.pods import PodRecord, read_pod
from kubeletplugin.prepare.kubelet_state import KubeletClaim, KubeletClaims
from kubeletplugin.prepare.prospects import LastCall, Prospect, State

NOW = 1000.0
PREPARED = Prospect(State.PREPARED, cdi_names=frozenset({"uid-1-gpu-0"}))
READY, BUSY, FOREIGN = Prospect(State.READY), Prospect(State.BUSY), Prospect(State.FOREIGN)
BLOCKED = Prospect(State.BLOCKED, "held by another claim")
FAILED, DONE, OPEN = LastCall(NOW - 30, "no"), LastCall(NOW - 30, ""), LastCall(NOW - 30, None)
JUST_DONE = LastCall(NOW - 0.5, "")


def pod(phase: str = "Pending", **spec: Any) -> PodRecord:
    metadata = {"uid": "pod-1", "name": "p", "namespace": "team"}
    return read_pod({"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def kubelet(*pods: str, cdi_names: tuple[str, ...] = (), uid: str = "uid-1") -> KubeletClaims:
    return KubeletClaims({uid: KubeletClaim(uid, "team", "train", frozenset(pods), cdi_names)})


NOTHING = KubeletClaims()
BLIND = KubeletClaims(unreadable="its checksum doesn't match")
LISTED = kubelet("pod-1")
TAKEN = kubelet("pod-1", cdi_names=("uid-1-gpu-0",))
OTHERS = kubelet("pod-0", cdi_names=("uid-1-gpu-0",))
OLDER = kubelet("pod-1", cdi_names=("uid-1-gpu-7",))


@pytest.mark.parametrize(
    ("prospect", "call", "kubelets", "verdict"),
    [
        # the kubelet's own GET was refused: nothing ever came
        (READY, None, NOTHING, Verdict.UNASKED),
        (READY, None, BLIND, Verdict.UNASKED),
        # ... of a second pod of a claim that is prepared
        (PREPARED, None, OTHERS, Verdict.UNASKED),
        (PREPARED, DONE, OTHERS, Verdict.UNASKED),
        # refused, and the reason is gone
        (READY, FAILED, LISTED, Verdict.REFUSED),
        (READY, FAILED, BLIND, Verdict.REFUSED),
        # refused by an instance that is gone, or by none since none was registered
        (READY, None, LISTED, Verdict.REFUSED),
        # finished after the kubelet had given up, here or by an instance that is gone
        (PREPARED, FAILED, LISTED, Verdict.LATE),
        (PREPARED, FAILED, BLIND, Verdict.LATE),
        (PREPARED, None, LISTED, Verdict.LATE),
        (PREPARED, DONE, LISTED, Verdict.LATE),
        (PREPARED, FAILED, OLDER, Verdict.LATE),
        # ... after the kubelet had restarted, with an answer from before in its list
        (PREPARED, FAILED, TAKEN, Verdict.LATE),
        # it has passed
        (PREPARED, DONE, TAKEN, Verdict.PASSED),
        (PREPARED, None, TAKEN, Verdict.PASSED),
        (READY, None, TAKEN, Verdict.PASSED),
        (FOREIGN, None, NOTHING, Verdict.PASSED),
        # who can't see doesn't wake what may have passed
        (PREPARED, DONE, BLIND, Verdict.PASSED),
        (PREPARED, None, BLIND, Verdict.PASSED),
        # a try would fail, or one is under way
        (BLOCKED, FAILED, LISTED, Verdict.BLOCKED),
        (BLOCKED, None, NOTHING, Verdict.BLOCKED),
        (BUSY, OPEN, LISTED, Verdict.NOT_YET),
        (BUSY, FAILED, LISTED, Verdict.NOT_YET),
        # the kubelet is about to write its list
        (PREPARED, JUST_DONE, LISTED, Verdict.NOT_YET),
        (PREPARED, JUST_DONE, NOTHING, Verdict.NOT_YET),
    ],
)
def test_a_pod_with_one_claim(
    prospect: Prospect, call: LastCall | None, kubelets: KubeletClaims, verdict: Verdict
) -> None:
    assert judge(pod(), [Sight("uid-1", prospect, call)], kubelets, NOW) is verdict


@pytest.mark.parametrize(
    ("prospect", "call", "kubelets", "verdict"),
    [
        (PREPARED, None, TAKEN, Verdict.LATE),
        (READY, None, TAKEN, Verdict.REFUSED),
        (PREPARED, DONE, TAKEN, Verdict.PASSED),
        (PREPARED, FAILED, TAKEN, Verdict.LATE),
        (BLOCKED, None, TAKEN, Verdict.BLOCKED),
    ],
)
def test_after_a_reboot_the_kubelets_list_is_that_of_before(
    prospect: Prospect, call: LastCall | None, kubelets: KubeletClaims, verdict: Verdict
) -> None:
    assert judge(pod("Running"), [Sight("uid-1", prospect, call)], kubelets, NOW) is verdict


@pytest.mark.parametrize(
    ("prospects", "verdict"),
    [
        ((READY, BLOCKED), Verdict.BLOCKED),
        ((READY, BUSY), Verdict.NOT_YET),
        ((BUSY, BLOCKED), Verdict.BLOCKED),
        ((READY, FOREIGN), Verdict.UNASKED),
        ((FOREIGN, FOREIGN), Verdict.PASSED),
    ],
)
def test_a_pod_with_two_claims_needs_both(prospects: tuple[Prospect, ...], verdict: Verdict) -> None:
    sights = [Sight(f"uid-{number}", prospect, None) for number, prospect in enumerate(prospects, 5)]
    assert judge(pod(), sights, NOTHING, NOW) is verdict
    assert judge(pod(), sights[::-1], NOTHING, NOW) is verdict


@pytest.mark.parametrize(
    ("age", "last", "volumes", "calls", "had"),
    [
        (2.9, 500.0, [], [None], False),
        (3.0, 500.0, [], [None], True),
        # a burst: others' Prepares still come
        (5.0, 1.9, [], [None], False),
        (5.0, 2.0, [], [None], True),
        (9.9, 0.0, [], [None], False),
        (10.0, 0.0, [], [None], True),
        # its own Prepare failed
        (0.0, 0.0, [], [None, FAILED], True),
        (0.0, 0.0, [], [DONE, OPEN], False),
        # volumes
        (29.9, 500.0, [{"name": "v", "persistentVolumeClaim": {}}], [None], False),
        (30.0, 0.0, [{"name": "v", "csi": {}}], [None], True),
        (3.0, 500.0, [{"name": "v", "projected": {}}, {"name": "w", "configMap": {}}], [None], True),
        (0.0, 0.0, [{"name": "v", "persistentVolumeClaim": {}}], [FAILED], True),
    ],
)
def test_when_what_has_not_come_may_be_missed(
    age: float, last: float, volumes: list[dict[str, Any]], calls: list[LastCall | None], had: bool
) -> None:
    assert has_had_its_time(pod(volumes=volumes), calls, NOW, NOW - age, NOW - last) is had
