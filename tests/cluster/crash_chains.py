"""All crash points in a few chains: cut off at one, the agent is started again and cut off at the next one in what it
does then, and so on; whether it finds back is judged at a chain's end.

That costs a second or two for each point instead of a case, and each cut but the first meets what others left.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster import crash_scenarios as scenarios
from tests.cluster.crashes import STATE, Rig

RELEASE = ("release.begun", "release.file-removed", "release.looked", "release.committed")
COMMIT = ("prepare.read", "prepare.free", "prepare.read-again", "prepare.committed", "prepare.repeated")
FILE = ("cdi.temporary", "cdi.fenced", "cdi.renamed")
STARTING = (
    *("start.accepted", "start.served", "register.bound", "register.published", "register.confirmed"),
    *("takeover.acquired", "takeover.set-aside", "takeover.opened", "takeover.cleaned", "takeover.stray"),
    *("adopt.seen", "adopt.committed", "heal.begun", "takeover.recovered", "takeover.activated"),
)


def starting(rig: Rig) -> None:
    """With a damaged ledger and a stray file."""
    rig.agent.kill()
    scenarios.break_ledger()
    scenarios.STRANGER.write_text("{}")
    cut_again(rig, *STARTING)
    rig.restart()


def claims_life(rig: Rig) -> None:
    """One claim's end, the next one's beginning and the loss of its file, and the answer to a third one."""
    old = rig.subject
    rig.stop_at("release.begun", lambda: rig.delete(old))
    cut_again(rig, *RELEASE[1:])
    rig.subject = ""
    rig.restart()
    rig.wait_gone(old)
    rig.stop_at("ledger.uncommitted", lambda: _create(rig))
    cut_again(rig, *COMMIT)
    rig.restart()
    rig.wait_running(rig.subject)
    scenarios.restore(rig, "mend.begun")
    cut_again(rig, *FILE)
    rig.restart()
    old = rig.subject
    rig.delete(old)
    rig.wait_gone(old)
    rig.stop_at("prepare.written", lambda: _create(rig))
    rig.restart()


def busy_gpu(rig: Rig) -> None:
    """NVML shows another pod's process on a GPU, for which the next claim waits."""
    gpus = scenarios.occupy(rig)
    rig.stop_at("prepare.waiting", lambda: _create(rig))
    gpus.set_processes(0, [])
    cut_again(rig, "drain.over", "drain.ended")
    rig.restart()
    rig.delete("monitor")


def moved_and_forgotten(rig: Rig) -> None:
    """A claim is allocated anew while the kubelet is away; then the kubelet loses its list."""
    scenarios.undo(rig, "prepare.undone")
    rig.restart()
    rig.wait_running(rig.subject, rig.second)
    rig.judge_second()
    rig.stop_kubelet()
    names = [rig.subject, rig.second]
    rig.delete(*names, force=True)
    rig.wait_gone(*names)
    rig.kill_containers()
    rig.stop_at("sweep.judged", STATE.unlink)
    rig.subject = rig.second = ""
    rig.lingers = False
    rig.node.start_kubelet()
    rig.restart()


def slices(rig: Rig) -> None:
    """All slices are deleted; then half of the GPUs leave."""
    scenarios.wiped(rig, "slices.planned")
    cut_again(rig, "slices.written")
    rig.restart()
    scenarios.shrunk(rig, "slices.deleted")
    rig.restart()


def handing_over(rig: Rig) -> None:
    """To another instance and back, and then an orderly end."""
    for point in ("yield.quiet", "yield.closed"):
        scenarios.give_way(rig, point)
        scenarios.overtaken(rig)
    for point in ("stop.yielded", "stop.unregistered"):
        scenarios.end(rig, point)
        rig.restart()


def _create(rig: Rig) -> None:
    rig.subject = rig.create()


def cut_again(rig: Rig, *points: str) -> None:
    """Each in what the agent does after its next start: recovery, or a call that the kubelet repeats."""
    for point in points:
        rig.agent.kill()
        rig.stop_at(point, rig.start)


@dataclass(frozen=True, slots=True)
class Chain:
    """``act`` cuts the agent off at ``points``, in that order, and ends with one that serves."""

    act: Callable[[Rig], None]
    points: tuple[str, ...]


CHAINS = (
    Chain(starting, STARTING),
    Chain(claims_life, (*RELEASE, "ledger.uncommitted", *COMMIT, "mend.begun", *FILE, "prepare.written")),
    Chain(busy_gpu, ("prepare.waiting", "drain.over", "drain.ended")),
    Chain(moved_and_forgotten, ("prepare.undone", "sweep.judged")),
    Chain(slices, ("slices.planned", "slices.written", "slices.deleted")),
    Chain(handing_over, ("yield.quiet", "yield.closed", "stop.yielded", "stop.unregistered")),
)


def play_chain(rig: Rig, chain: Chain) -> None:
    """A failure tells at which points the agent was cut off before."""

    def act() -> None:
        chain.act(rig)
        assert tuple(rig.cuts) == chain.points, "the chain doesn't cut where it says"

    try:
        scenarios.played(rig, act)
    except BaseException as error:
        error.add_note(f"the agent was cut off at {', '.join(rig.cuts) or 'no point yet'}")
        raise
