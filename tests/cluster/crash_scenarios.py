"""How the agent gets to each of its crash points on a real node, and what befalls it there.

A scenario begins with a subject that runs, has the agent stand still at one of its points, and says in ``expect`` what
becomes of the subject if nobody deletes it: it stays, or another pod takes its place.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from kubeletplugin.nvml.simulated import SimulatedNode
from tests.cluster.cgroups import processes_of
from tests.cluster.crashes import CDI, LEDGER, STATE, Rig
from tests.cluster.objects import claim, claim_spec, pod, request, template
from tests.cluster.test_burst import GPUS
from tests.cluster.test_faults import STUBBORN, for_gpu

SEED = int(os.environ.get("GPUCLAIM_SEED") or random.SystemRandom().randrange(10_000))
"""Of samples, and of what is done in either order."""

STRANGER = CDI / "k8s.gpu.nvidia.com-claim_00000000-0000-4000-8000-000000000000.json"


# --- scenarios: each has the agent stand still at the point ---
def prepare(rig: Rig, point: str) -> None:
    old, rig.subject = rig.subject, ""
    rig.delete(old)
    rig.wait_gone(old)

    def begin() -> None:
        rig.subject = rig.create()

    rig.stop_at(point, begin)


def wait(rig: Rig, point: str) -> None:
    """The old pod's processes ignore SIGTERM and live on after its forced delete, for the next one's Prepare."""
    rig.delete(rig.subject)
    rig.wait_gone(rig.subject)
    old = rig.create(command=STUBBORN)
    rig.wait_running(old)
    rig.subject, rig.leaving = rig.create(), old
    rig.stop_at(point, lambda: rig.delete(old, force=True))


def repeat(rig: Rig, point: str) -> None:
    """A second pod of a claim, after a restart of the kubelet."""
    name = f"shared-{rig.number}"
    rig.world.create(claim(name, claim_spec(request(count=GPUS))))
    old = rig.subject
    rig.subject = rig.create(claim_name=name)
    rig.delete(old)
    rig.wait_running(rig.subject)
    rig.node.restart_kubelet()
    rig.agent.wait_ready()

    def begin() -> None:
        rig.second = rig.create(claim_name=name)

    rig.stop_at(point, begin)


def undo(rig: Rig, point: str) -> None:
    """While the kubelet is away, a claim's pod is deleted by force, its GPU goes to another pod's claim, and the claim
    is allocated another GPU for the next pod."""
    moving, first = f"moving-{rig.number}", f"first-{rig.number}"
    rig.world.create(claim(moving), template(first, for_gpu(rig.world, "gpu-0")))
    rig.delete(rig.subject)
    rig.wait_gone(rig.subject)
    old = rig.create(claim_name=moving)
    rig.wait_running(old)
    rig.watcher.add(rig.world, old)
    rig.stop_kubelet()
    rig.delete(old, force=True)
    rig.world.kubectl.wait("the claim is deallocated", lambda: not _allocation(rig, moving))
    rig.subject = rig.create(template_name=first)
    rig.watcher.add(rig.world, rig.subject)
    rig.world.kubectl.wait("the other pod's claim has gpu-0", lambda: _has_claim(rig, rig.subject))
    rig.second = rig.create(claim_name=moving)
    rig.world.kubectl.wait("the claim is allocated anew", lambda: _allocation(rig, moving))
    rig.lingers = True
    rig.stop_at(point, rig.node.start_kubelet)


def _allocation(rig: Rig, name: str) -> object:
    found = rig.world.kubectl.json("get", "resourceclaim", name, "-n", rig.world.namespace)
    return found.get("status", {}).get("allocation")


def _has_claim(rig: Rig, name: str) -> object:
    statuses = rig.pods()[name].get("status", {}).get("resourceClaimStatuses", ())
    return statuses and _allocation(rig, statuses[0]["resourceClaimName"])


def unprepare(rig: Rig, point: str) -> None:
    rig.stop_at(point, lambda: rig.delete(rig.subject))
    rig.leaving, rig.subject = rig.subject, ""


def drain(rig: Rig, point: str) -> None:
    """NVML shows another pod's process on a GPU, until it doesn't."""
    gpus = occupy(rig)
    rig.stop_at(point, lambda: gpus.set_processes(0, []))
    rig.delete("monitor")


def occupy(rig: Rig) -> SimulatedNode:
    """The subject has gone, and a pod ``monitor`` is on one of its GPUs."""
    rig.world.create(_monitor())
    rig.wait_running("monitor")
    gpus = rig.agent.gpus()
    gpus.set_processes(0, [min(processes_of(rig.pods()["monitor"]["metadata"]["uid"]))])
    rig.delete(rig.subject)
    rig.wait_gone(rig.subject)
    rig.subject = ""
    return gpus


def _monitor() -> dict[str, object]:
    plain = pod("monitor", template_name="all")
    spec = plain["spec"]
    del spec["resourceClaims"], spec["containers"][0]["resources"]
    return plain


def sweep(rig: Rig, point: str) -> None:
    """The kubelet has lost its list, pod and claim have gone while it was away: no Unprepare will come."""
    rig.stop_kubelet()
    rig.delete(rig.subject, force=True)
    rig.leaving, rig.subject = rig.subject, ""
    rig.wait_gone(rig.leaving)
    rig.kill_containers()
    rig.stop_at(point, STATE.unlink)
    rig.node.start_kubelet()


def restore(rig: Rig, point: str) -> None:
    def wipe() -> None:
        for path in CDI.glob("*claim_*"):
            path.unlink()

    rig.stop_at(point, wipe)


def lost_ledger(rig: Rig, point: str) -> None:
    rig.agent.kill()
    for path in LEDGER.parent.glob(f"{LEDGER.name}*"):
        path.unlink()
    rig.stop_at(point, rig.start)


def broken_ledger(rig: Rig, point: str) -> None:
    rig.agent.kill()
    break_ledger()
    rig.stop_at(point, rig.start)


def break_ledger() -> None:
    for path in LEDGER.parent.glob(f"{LEDGER.name}-*"):
        path.unlink()
    LEDGER.write_bytes(b"not a database" * 500)


def stray_file(rig: Rig, point: str) -> None:
    rig.agent.kill()
    STRANGER.write_text("{}")
    rig.stop_at(point, rig.start)


def start(rig: Rig, point: str) -> None:
    rig.agent.kill()
    rig.stop_at(point, rig.start)


def wiped(rig: Rig, point: str) -> None:
    rig.stop_at(point, lambda: rig.world.kubectl.run("delete", "resourceslices", "--all", "--wait=false"))


def shrunk(rig: Rig, point: str) -> None:
    """Half of the GPUs leave, and with them a slice; they are back when the agent is."""
    gpus = rig.agent.gpus()
    half = range(GPUS // 2, GPUS)

    def lose() -> None:
        for index in half:
            gpus.lose_gpu(index)

    rig.stop_at(point, lose)
    for index in half:
        gpus.restore_gpu(index)


def give_way(rig: Rig, point: str) -> None:
    """To another instance, which goes on when this one stands still."""
    rig.stop_at(point, lambda: rig.spare.start(ready=False, same_pod=True))


def end(rig: Rig, point: str) -> None:
    rig.stop_at(point, lambda: rig.agent.signal(signal.SIGTERM))


# --- deeds: each leaves one agent that serves ---
def killed(rig: Rig) -> None:
    if rig.spare.pid is not None:
        overtaken(rig)
    else:
        rig.restart()


def rebooted(rig: Rig) -> None:
    rig.reboot()


def deleted(rig: Rig) -> None:
    """The pod that it is about, by force, while the agent stands still; then that is killed."""
    if rig.second:
        rig.leaving, rig.second = rig.second, ""
    elif rig.subject:
        rig.leaving, rig.subject = rig.subject, ""
    if rig.leaving:
        rig.delete(rig.leaving, force=True)
    killed(rig)


def overtaken(rig: Rig) -> None:
    """Another instance starts and takes over; then this one is killed."""
    _take_over(rig)
    rig.spare.kill()


def overtaken_and_woken(rig: Rig) -> None:
    """The same, but this one wakes, goes on with what it did, and is ended in order."""
    _take_over(rig)
    rig.spare.wake()
    time.sleep(1)
    begun = time.monotonic()
    rig.spare.stop()
    assert time.monotonic() - begun < ORDERLY_SECONDS, "woken after another one took over, it didn't end in order"
    rig.agent.wait_ready()


def _take_over(rig: Rig) -> None:
    rig.swap()
    if rig.agent.pid is None:
        rig.agent.start(ready=False, same_pod=True)
    rig.agent.wait_ready()
    rig.spare.disarm()


Deed = Callable[[Rig], None]
DEEDS: dict[str, Deed] = {deed.__name__: deed for deed in (killed, rebooted, deleted, overtaken, overtaken_and_woken)}


ORDERLY_SECONDS = 14.0
"""Below what the harness gives a process before it kills it."""

WITHOUT_A_POD = ("killed", "rebooted", "overtaken", "overtaken_and_woken")


@dataclass(frozen=True, slots=True)
class Scenario:
    act: Callable[[Rig, str], None]
    points: tuple[str, ...]
    deeds: tuple[str, ...] = tuple(DEEDS)


SCENARIOS = (
    Scenario(
        prepare,
        (
            "prepare.read",
            "prepare.free",
            "prepare.read-again",
            "ledger.uncommitted",
            "prepare.committed",
            "cdi.temporary",
            "cdi.fenced",
            "cdi.renamed",
            "prepare.written",
        ),
    ),
    Scenario(wait, ("prepare.waiting",)),
    Scenario(repeat, ("prepare.repeated",)),
    Scenario(undo, ("prepare.undone",)),
    Scenario(unprepare, ("release.begun", "release.file-removed", "release.looked", "release.committed")),
    Scenario(drain, ("drain.over", "drain.ended"), WITHOUT_A_POD),
    Scenario(sweep, ("sweep.judged",), WITHOUT_A_POD),
    Scenario(restore, ("mend.begun",)),
    Scenario(lost_ledger, ("adopt.seen", "adopt.committed", "heal.begun")),
    Scenario(broken_ledger, ("takeover.set-aside",)),
    Scenario(stray_file, ("takeover.stray",)),
    Scenario(
        start,
        (
            "start.accepted",
            "start.served",
            "register.bound",
            "register.published",
            "register.confirmed",
            "takeover.acquired",
            "takeover.opened",
            "takeover.cleaned",
            "takeover.recovered",
            "takeover.activated",
        ),
    ),
    Scenario(wiped, ("slices.planned", "slices.written")),
    Scenario(shrunk, ("slices.deleted",)),
    Scenario(give_way, ("yield.quiet", "yield.closed"), ("killed", "rebooted", "deleted", "overtaken_and_woken")),
    Scenario(end, ("stop.yielded", "stop.unregistered")),
)
MORE = (
    Scenario(
        undo,
        ("release.begun", "release.file-removed", "release.looked", "release.committed", "prepare.committed"),
    ),
    Scenario(
        sweep,
        ("release.begun", "release.file-removed", "release.looked", "release.committed"),
        WITHOUT_A_POD,
    ),
    Scenario(restore, ("cdi.temporary", "cdi.fenced", "cdi.renamed")),
)
"""Points that more than one kind of work passes: for the whole matrix."""

Case = tuple[Callable[[Rig, str], None], str, str]


def matrix() -> list[Case]:
    scenarios = (*SCENARIOS, *MORE)
    return [(it.act, point, deed) for it in scenarios for point in it.points for deed in it.deeds]


def name_of(case: Case) -> str:
    act, point, deed = case
    return f"{act.__name__}-{point}-{deed}"


def play(rig: Rig, case: Case) -> None:
    act, point, deed = case

    def do() -> None:
        act(rig, point)
        DEEDS[deed](rig)

    played(rig, do)


def played(rig: Rig, do: Callable[[], None]) -> None:
    """Raises when it doesn't find back from what ``do`` does."""
    rig.calm()
    try:
        do()
        rig.settle()
    except BaseException:
        rig.count()
        print(rig.describe(), file=sys.stderr)
        rig.recover()
        raise
    rig.count()
    rig.played += 1
