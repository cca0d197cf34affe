"""When a pod is woken: pure judgements over what is known of it.

A pod is woken only if all of this is so:

- it is bound to this node, and nothing of it has started;
- each of its claims is reserved for it, and at least one with devices of ours hasn't reached the kubelet: its last
  Prepare failed, or was finished after the kubelet had given up, or none came although the kubelet has had its time;
- a Prepare would succeed now (prepare.prospects): what it would wait for, or be refused for, is gone.

After a reboot the pods that ran begin anew, and count as not started.

The kubelet prepares claims after a pod's volumes and before anything else, so a pod that waits for its image has
passed here. One whose volumes others must attach can wait long for those without a Prepare: it is given more time.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.prepare.kubelet_state import KubeletClaims
from kubeletplugin.prepare.prospects import LastCall, Prospect, State

GRACE_SECONDS = 3.0
"""From when a pod is first seen here; the kubelet needs that long by itself, more in a burst."""
QUIET_SECONDS = 2.0
"""Without a Prepare of any claim: before, the kubelet is on its way through a burst, and the pod's turn may come."""
BUSIEST_SECONDS = 10.0
"""From when a pod is first seen: it is judged then however busy the kubelet is."""
ATTACH_SECONDS = 30.0
"""All three, of a pod with volumes that others attach."""
TAKEN_SECONDS = 1.0
"""After an answer, until the kubelet's own list must show it."""


class Verdict(enum.Enum):
    PASSED = "its claims have reached the kubelet"
    NOT_YET = "it may come by itself"
    BLOCKED = "a try would fail"
    REFUSED = "its Prepare failed, and the reason is gone"
    LATE = "its claim was prepared after the kubelet had given up"
    UNASKED = "the kubelet hasn't asked for its claim"


WAKE = (Verdict.REFUSED, Verdict.LATE, Verdict.UNASKED)


@dataclass(frozen=True, slots=True)
class Sight:
    """One claim of a pod. ``call`` is the kubelet's last Prepare of it that this instance knows."""

    uid: str
    prospect: Prospect
    call: LastCall | None


def has_had_its_time(pod: PodRecord, calls: Sequence[LastCall | None], now: float, seen: float, last: float) -> bool:
    """Whether what hasn't come may be missed. A failed Prepare was the pod's turn. ``seen``: the pod, for the first
    time; ``last``: a Prepare of any claim. All times are monotonic."""
    if any(call is not None and call.error for call in calls):
        return True
    age = now - seen
    if pod.attaches:
        return age >= ATTACH_SECONDS
    return age >= GRACE_SECONDS and (now - last >= QUIET_SECONDS or age >= BUSIEST_SECONDS)


def judge(pod: PodRecord, sights: Sequence[Sight], kubelet: KubeletClaims, now: float) -> Verdict:
    """Of a pod that has had its time; ``sights`` are all its claims, reserved for it."""
    verdicts = {_judge(pod, sight, kubelet, now) for sight in sights}
    for verdict in (Verdict.BLOCKED, Verdict.NOT_YET, *WAKE):
        if verdict in verdicts:
            return verdict
    return Verdict.PASSED


def _judge(pod: PodRecord, sight: Sight, kubelet: KubeletClaims, now: float) -> Verdict:
    match sight.prospect.state:
        case State.FOREIGN:
            return Verdict.PASSED
        case State.BLOCKED:
            return Verdict.BLOCKED
        case State.BUSY:
            return Verdict.NOT_YET
    call, listed = sight.call, pod.uid in kubelet.pods(sight.uid)
    prepared = sight.prospect.state is State.PREPARED
    if call is not None and call.error:
        # The kubelet asks only for what it doesn't believe prepared, whatever older answers its list still has.
        return Verdict.LATE if prepared else Verdict.REFUSED
    if listed and _has_answer(sight, kubelet) and not _begins_anew(pod, call):
        return Verdict.PASSED
    if kubelet.unreadable and prepared:
        return Verdict.PASSED
    if call is not None and now - call.at < TAKEN_SECONDS:
        return Verdict.NOT_YET
    if listed:
        # It has called: this instance, whose answer was lost, or one that is gone.
        return Verdict.LATE if prepared else Verdict.REFUSED
    return Verdict.UNASKED


def _begins_anew(pod: PodRecord, call: LastCall | None) -> bool:
    """After a reboot the kubelet's list is that of before, and its first tries may have met no agent."""
    return pod.phase == "Running" and call is None


def _has_answer(sight: Sight, kubelet: KubeletClaims) -> bool:
    """What isn't prepared here although the kubelet has an answer is prepared again by the agent itself."""
    names = set(kubelet.cdi_names(sight.uid))
    return names.issuperset(sight.prospect.cdi_names) if sight.prospect.cdi_names else bool(names)
