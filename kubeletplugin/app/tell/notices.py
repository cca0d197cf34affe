"""What people should hear of, as log lines and Events: on the Node for hardware and slices, on the pod where the
kubelet says nothing itself."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from kubeapi.errors import ApiError
from kubeapi.events import EventRecorder, ObjectReference
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.tell.classic_news import Finding
from kubeletplugin.app.tell.classic_news import tell as tell_of_others
from kubeletplugin.app.tell.hardware_news import Sentence, tell
from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.prepare.ports import OverdueDrain
from kubeletplugin.slices.compare import DroppedFieldsError
from kubeletplugin.slices.sync import WriteVerb
from kubeletplugin.slices.validate import Problem

log = logging.getLogger(__name__)

_OTHERS, _FOREIGN, _DRAIN = "others/", "foreign/", "drain/"
_DRIVER = "driver"


class NodeNotices:
    """Implements prepare.ports.Notices and slices.controller.SliceObserver."""

    def __init__(
        self,
        recorder: EventRecorder,
        node_name: str,
        find_pod: Callable[[str], PodRecord | None],
        metrics: Metrics,
    ) -> None:
        """``find_pod`` gives this node's pod of a UID, as far as it is known."""
        self._recorder = recorder
        self._find_pod = find_pod
        self._metrics = metrics
        # The kubelet's own events give a node's name for its UID; `kubectl describe node` looks for that.
        self._node = ObjectReference("v1", "Node", node_name, uid=node_name)
        self._told: Mapping[str, str] = {}
        self._others: Mapping[str, str] = {}
        self._driver_trouble = ""
        self._foreign: Mapping[str, str] = {}
        self._drains: Mapping[str, str] = {}
        self.told_changed = asyncio.Event()
        """Set whenever ``told`` may have changed; whoever waits for it clears it."""
        self.accepted = False

    def _warn(self, reason: str, action: str, note: str, key: str | None = None) -> None:
        """``key`` as of EventRecorder.emit: for a note with something in it that differs from time to time."""
        log.warning("%s", note)
        self._recorder.emit(self._node, reason=reason, action=action, note=note, warning=True, key=key)

    def _say(self, reason: str, action: str, note: str) -> None:
        log.info("%s", note)
        self._recorder.emit(self._node, reason=reason, action=action, note=note)

    # --- hardware ---
    @property
    def told(self) -> Mapping[str, str]:
        """What has been told and stands, for ``take_up``."""
        kinds = {"": self._told, _OTHERS: self._others, _FOREIGN: self._foreign, _DRAIN: self._drains}
        told = {kind + subject: note for kind, told in kinds.items() for subject, note in told.items()}
        return {**told, **({_DRIVER: self._driver_trouble} if self._driver_trouble else {})}

    def take_up(self, told: Mapping[str, str]) -> None:
        """Goes on from what an earlier instance has told."""
        kinds = (_OTHERS, _FOREIGN, _DRAIN)
        self._others, self._foreign, self._drains = (_of(kind, told) for kind in kinds)
        self._driver_trouble = told.get(_DRIVER, "")
        self._told = {
            subject: note for subject, note in told.items() if subject != _DRIVER and not subject.startswith(kinds)
        }

    def inventory_changed(self, inventory: Inventory) -> None:
        """Says what is withheld anew and what is back."""
        said, self._told = tell(self._told, inventory)
        self.told_changed.set()
        self._tell(said)

    def others_changed(self, found: Finding) -> None:
        """Says what other device plugins have taken anew and what is back."""
        before = self._others
        said, self._others = tell_of_others(before, found)
        if self._others != before:
            self.told_changed.set()
        self._tell(said)

    def _tell(self, said: Iterable[Sentence]) -> None:
        for sentence in said:
            say = self._warn if sentence.warning else self._say
            say(sentence.reason, sentence.action, sentence.note)

    def driver_trouble(self, problem: str) -> None:
        """What has kept the node's GPUs from being looked at for a while; empty when nothing does any more. The
        inventory has logged it."""
        if problem == self._driver_trouble:
            return
        self._driver_trouble = problem
        self.told_changed.set()
        note = (
            f"the node's GPUs can't be used: {problem}" if problem else "the driver answers for the node's GPUs again"
        )
        reason = "DriverTrouble" if problem else "DriverBack"
        self._recorder.emit(self._node, reason=reason, action="Inventory", note=note, warning=bool(problem))

    # --- slices ---
    def slice_written(self, verb: WriteVerb) -> None:
        log.debug("wrote a ResourceSlice: %s", verb)
        self._metrics.slice_writes.labels(verb).inc()

    def not_published(self, pool: str, problem: Problem) -> None:
        self._metrics.left_out.inc()
        self._warn("DeviceNotPublished", "Publish", f"pool {pool}: {problem}")

    def fields_dropped(self, error: DroppedFieldsError) -> None:
        self._metrics.dropped_fields.inc(len(error.dropped))
        self._warn("SliceFieldsDropped", "Publish", str(error))

    def sync_failed(self, pool: str, error: Exception, retry_in: float) -> None:
        """The controller has logged it; an Event couldn't be written while the API server is away."""
        self._metrics.slice_failures.labels(str(error.status) if isinstance(error, ApiError) else "internal").inc()

    def accepted_changed(self, accepted: bool) -> None:
        self.accepted = accepted
        log.info("slices are %s by the API server", "accepted" if accepted else "not yet accepted")

    # --- claims ---
    def ledger_damaged(self, problem: str, aside: Path) -> None:
        self._warn("LedgerDamaged", "SetAside", f"{problem}; it was set aside as {aside} and begun anew")

    def ledger_missing(self, path: Path) -> None:
        self._warn(
            "LedgerRemoved",
            "BeginAnew",
            f"there was no ledger {path}, although agents have taken over here before: it was removed or emptied (or"
            " none could be written so far); it is begun anew from the kubelet's list and the devices; leave it alone",
        )

    def foreign_cdi_files(self, problems: Collection[str]) -> None:
        """All that there are now."""
        before, self._foreign = self._foreign, {problem: problem for problem in problems}
        for problem in sorted(self._foreign.keys() - before.keys()):
            self._warn("ForeignCDIFile", "LookAtCDI", problem)
        if self._foreign != before:
            self.told_changed.set()

    def ledger_rescued(self, note: str) -> None:
        self._warn("LedgerRemoved", "WriteAnew", note)

    def files_restored(self, folder: Path, driver: bool, claims: int) -> None:
        whose = ["the driver"] if driver else []
        whose += [f"{claims} claim{'s' if claims > 1 else ''}"] if claims else []
        note = f"CDI files of {' and '.join(whose)} were removed or changed by somebody else and are written again"
        self._warn("CDIFilesRestored", "Restore", f"{note}; look what cleans up {folder}", key="")

    def drains_overdue(self, drains: Collection[OverdueDrain]) -> None:
        overdue = {f"{drain.hold.device.uuid}/{drain.hold.holder.id}/{drain.hold.since}": drain for drain in drains}
        before, self._drains = self._drains, {key: drain.hold.device.name for key, drain in overdue.items()}
        for key, drain in overdue.items():
            if key not in before:
                self._metrics.drains_overdue.inc()
                note = f"device {drain.hold.device.name} has been draining for long: {drain.reason}"
                self._warn("DeviceDraining", "Drain", note + _seen(drain.pids), key=note)
        for key in sorted(before.keys() - overdue.keys()):
            self._say("DeviceFree", "Drain", f"device {before[key]} doesn't drain any more: it is free again")
        if self._drains != before:
            self.told_changed.set()

    def swept(self) -> None:
        self._metrics.sweeps.inc()

    def hold_ended(self, ref: ClaimRef) -> None:
        self._metrics.holds_ended.inc()

    def claim_healed(self, ref: ClaimRef) -> None:
        self._metrics.claims_healed.inc()

    def drain_released(self, device: HeldDevice, pids: Mapping[str, frozenset[int]], who: str) -> None:
        note = (
            f"device {device.name} was released by hand ({who}) while draining"
            f"{_seen(pids) or '; no process was seen on it any more'}"
        )
        self._warn("DeviceReleased", "Release", note)

    def claim_moved(self, ref: ClaimRef, pods: Collection[str]) -> None:
        self._tell_owners(
            "ClaimMoved",
            ref,
            pods,
            f"claim {ref.namespace}/{ref.name} was allocated to other devices while the kubelet has it prepared",
            "to move",
        )

    def claim_forgotten(self, ref: ClaimRef, pods: Collection[str]) -> None:
        self._tell_owners(
            "ClaimForgotten",
            ref,
            pods,
            f"claim {ref.namespace}/{ref.name} was joined while the kubelet let it go, and has been forgotten by it",
            "to start",
        )

    def _tell_owners(self, reason: str, ref: ClaimRef, pods: Collection[str], note: str, why: str) -> None:
        """On each of the pods, where their owners look; on the claim for those that nobody knows by name."""
        claim = ObjectReference("resource.k8s.io/v1", "ResourceClaim", ref.name, ref.namespace, ref.uid)
        log.warning("%s: pods %s", note, ", ".join(sorted(pods)) or "unknown", extra={"claim": ref.uid})
        found = {uid: self._find_pod(uid) for uid in sorted(pods)}
        for uid, pod in found.items():
            if pod is not None:
                about = ObjectReference("v1", "Pod", pod.name, pod.namespace, uid)
                self._warn_about(reason, about, f"{note}: delete this pod {why} it", related=claim)
        unknown = [uid for uid, pod in found.items() if pod is None]
        if unknown or not pods:
            named = ", ".join(unknown) or "none known"
            self._warn_about(reason, claim, f"{note}: delete the pods that use it ({named}) {why} them")

    def _warn_about(
        self, reason: str, about: ObjectReference, note: str, related: ObjectReference | None = None
    ) -> None:
        self._recorder.emit(about, reason=reason, action="Prepare", note=note, warning=True, key="", related=related)


def _seen(pids: Mapping[str, frozenset[int]]) -> str:
    pods = "; ".join(f"pod {pod}: pid {', '.join(map(str, sorted(found)))}" for pod, found in pids.items())
    return f" ({pods})" if pods else ""


def _of(kind: str, told: Mapping[str, str]) -> dict[str, str]:
    return {subject.removeprefix(kind): note for subject, note in told.items() if subject.startswith(kind)}
