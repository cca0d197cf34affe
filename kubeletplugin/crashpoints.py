"""Where the agent may be cut off: a name for each gap between two steps that belong together.

The agent must find its way back from its death, or from standing still while another instance takes over, in every one
of these gaps. ``reached`` marks one and does nothing. Only a test's own entry point sets ``hook`` (it then gets the
name, on whatever thread the step runs); no flag, variable or file of the product does.
"""

from collections.abc import Callable, Mapping

POINTS: Mapping[str, str] = {
    # One Prepare
    "prepare.read": "the claim was read; nothing was looked up for it yet",
    "prepare.waiting": "something is in the way and will be waited for",
    "prepare.undone": "another allocation of the claim was undone; nothing of the new one is begun",
    "prepare.free": "nothing is in the way; the claim isn't read again yet",
    "prepare.read-again": "the claim is still allocated the same; the row isn't committed",
    "prepare.committed": "the row is durable; its CDI file isn't written",
    "prepare.written": "row and file are there; the kubelet has no answer",
    "prepare.repeated": "the row answers a repeated call; the kubelet has no answer",
    # The end of a hold: by Unprepare, by the undo of another allocation, by a check
    "release.begun": "the hold is to end; the CDI file is still there",
    "release.file-removed": "the CDI file is gone; processes weren't looked for",
    "release.looked": "what is left on the devices is known; the row is still there",
    "release.committed": "row and holds are gone, or drain; nobody was told",
    "drain.over": "nothing is left on a draining device; its hold is still there",
    "drain.ended": "the hold of a drained device is gone; nobody was told",
    # Files and ledger
    "cdi.temporary": "a CDI file is whole under its temporary name; the lease wasn't asked",
    "cdi.fenced": "the lease is locked for a rename that wasn't done",
    "cdi.renamed": "a CDI file is in place; the lease is still locked",
    "ledger.uncommitted": "a transaction is done but for its commit; ledger and lease are locked",
    # Sweeps, and what the kubelet believes
    "sweep.judged": "a check has found a hold to be over; nothing of it is undone",
    "mend.begun": "a prepared claim's CDI file was found missing, or touched by others; it isn't written yet",
    "adopt.seen": "what others prepared, or use, is known; the ledger doesn't have it",
    "adopt.committed": "what others prepared is in the ledger; nothing else is recovered",
    "heal.begun": "a claim without a row, which the kubelet believes prepared, is to be prepared; nothing is begun",
    # Start and take-over
    "start.accepted": "hardware and slices are known to be good; no socket is there",
    "start.served": "the DRA socket answers; there is no registration socket",
    "register.bound": "the registration server answers under its hidden name only",
    "register.published": "the registration socket is there; the kubelet hasn't asked yet",
    "register.confirmed": "the kubelet calls this instance from now on; the lease isn't asked for",
    "takeover.acquired": "the lease is taken; the ledger isn't open",
    "takeover.set-aside": "a damaged ledger is set aside; there is no new one",
    "takeover.opened": "the ledger is open; leftovers of dead instances are there",
    "takeover.cleaned": "leftovers are gone; names aren't bound and the driver's CDI file is the last one's",
    "takeover.stray": "a CDI file without a row, which the kubelet doesn't need, is to go",
    "takeover.recovered": "claims are recovered; no standing work has begun",
    "takeover.activated": "all work has begun; calls aren't served",
    # Slices
    "slices.planned": "writes are necessary; none was made",
    "slices.deleted": "an obsolete slice is gone; others may be left to write",
    "slices.written": "one slice is written; its answer wasn't looked at, others may be left to write",
    # Yielding and ending
    "yield.quiet": "no call waits or works any more; ledger and lease are still held",
    "yield.closed": "the ledger is closed; the lease still names this instance",
    "stop.yielded": "an orderly end gave the lease back; the kubelet still calls this instance",
    "stop.unregistered": "the registration socket is gone; the DRA socket still answers",
}
"""Each point with what has happened before it, and what hasn't."""

hook: Callable[[str], None] | None = None


def reached(point: str) -> None:
    """Called in the gap that ``POINTS`` describes under this name."""
    if hook is not None:
        hook(point)
