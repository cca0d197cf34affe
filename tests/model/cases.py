"""What is checked, within which bounds, and what must come out.

With all rules on, every property must hold. With one rule off, a story must come out: else the model can't fail, and
proves nothing. The switches are explained in docs/protocol/gpuclaim.pml.
"""

from collections.abc import Mapping
from dataclasses import dataclass

QUIET: Mapping[str, int] = {"CRASHES": 0, "RESTARTS": 0, "TICKS": 0, "DEADLINES": 0, "DELETES": 1}
TWO: Mapping[str, int] = {**QUIET, "INSTANCES": 2, "PODS": 2}
MOVES: Mapping[str, int] = {**QUIET, "GPUS": 2}


@dataclass(frozen=True, slots=True)
class Case:
    """``story`` is what comes out, empty where nothing may."""

    name: str
    switches: Mapping[str, int]
    story: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(f"-D{name}={value}" for name, value in self.switches.items())


BROKEN = (
    Case("R_FILE1", {**QUIET, "R_FILE1": 0, "TICKS": 1}, "1: look, then start, then remove"),
    Case("R_KREF", {**QUIET, "R_KREF": 0, "R_HEAL": 0}, "2: the check ends what the kubelet still believes"),
    Case("R_DRAIN", {**MOVES, "R_DRAIN": 0, "RESTARTS": 1}, "3: undo of another allocation"),
    Case("R_WATCH", {**QUIET, "R_WATCH": 0, "DELETES": 2, "TICKS": 1}, "4: a pod that nobody knew"),
    Case("R_ROW1", {**QUIET, "R_ROW1": 0, "DELETES": 2}, "5: a file without a row"),
    Case("R_HEAL", {**QUIET, "R_HEAL": 0, "RESTARTS": 1}, "6: Unprepare undone halfway"),
    Case("R_SAME", {**MOVES, "R_SAME": 0}, "7: joined the wrong run"),
    Case("R_BOOT", {**QUIET, "R_BOOT": 0, "BOOTS": 1, "BOOTCLEAN": 0, "DELETES": 0}, "8: a file of before the reboot"),
    Case("R_LOCK", {**TWO, "R_LOCK": 0, "STOPS": 1, "TAKEOVERS": 2, "PODS": 1}, "9: woken between look and deed"),
    Case("R_KILL", {**TWO, "R_KILL": 0, "STOPS": 1, "WAKES": 0, "DELETES": 0}, "9: stopped with the lease locked"),
    Case("R_YIELD", {**TWO, "R_YIELD": 0, "BIDES": 0}, "10: yield waits for a Prepare that waits for the yield"),
    Case("R_ALIAS", {**MOVES, "R_ALIAS": 0, "RESTARTS": 1}, "11: both ids"),
    Case("R_STRAY", {**QUIET, "R_STRAY": 0, "CRASHES": 1, "LOSSES": 1}, "12: a ledger that was lost"),
)
"""R_KREF needs R_HEAL off, too: what a check ended wrongly is prepared again by the next sweep, so that the pod only
waits half a minute."""

SMALL = (
    Case("one agent", {**QUIET, "CRASHES": 1, "TICKS": 1}),
    Case("one agent, kubelet restart", {**QUIET, "RESTARTS": 1, "DEADLINES": 1}),
    Case("one agent, two GPUs", MOVES),
    Case("reboot, CDI folder kept", {**QUIET, "BOOTS": 1, "BOOTCLEAN": 0}),
    Case("ledger lost", {**QUIET, "CRASHES": 1, "LOSSES": 1, "PODS": 2}),
    Case("two agents", {**TWO, "TAKEOVERS": 2, "BIDES": 0}),
    Case("two agents, one stopped", {**TWO, "STOPS": 1, "TAKEOVERS": 2, "DELETES": 0}),
)

LARGE = (
    Case("one agent, all at once", {"DELETES": 2}),
    Case("one agent, two GPUs, kubelet restart", {**MOVES, "DELETES": 2, "RESTARTS": 1}),
    Case("the same, ids replaced (1.37)", {**MOVES, "DELETES": 2, "APPENDS": 0}),
    Case("reboot, folder kept, kubelet restart", {**QUIET, "DELETES": 2, "BOOTS": 1, "BOOTCLEAN": 0, "RESTARTS": 1}),
    Case("ledger lost, kubelet restart", {**QUIET, "DELETES": 2, "CRASHES": 1, "LOSSES": 1, "RESTARTS": 1}),
    Case("two agents, shared claim", {**TWO, "PODS": 3, "TAKEOVERS": 4}),
    Case("two agents, one killed", {**TWO, "CRASHES": 1, "TAKEOVERS": 4}),
    Case("two agents, one stopped", {**TWO, "STOPS": 1, "TAKEOVERS": 4}),
)
