"""The kubelet's own list of prepared claims, ``dra_manager_state`` (a checkpoint under the kubelet's root).

The kubelet writes a claim down before it asks us to prepare it and strikes it off only after Unprepare has succeeded.
So a claim that isn't in the list has no Unprepare to come, which is what a check must know before it ends a hold
(R_KREF). A file that is there but can't be read (format, checksum, permission) lists every claim: the hold
stays. Format as of 1.34 to 1.36 (pkg/kubelet/cm/dra/state): ``Data``, a JSON text, and its CRC-32 as ``Checksum``.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deviceclasses import names
from kubeletplugin.files import read_regular

FILE_NAME = "dra_manager_state"

_KIND = "DRACheckpoint"
_KNOWN_START = f'{{"kind":"{_KIND}","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":['
_ENTRY = '{"ClaimUID":"'
"""How each claim begins. Nothing inside of a JSON string reads like it, since quotes are escaped there."""
_OUR_IDS = f"{names.CDI_VENDOR}/{names.CDI_CLAIM_CLASS}="


@dataclass(frozen=True, slots=True)
class KubeletClaim:
    """One claim that the kubelet has. ``cdi_names`` are the names of our claim kind that it holds for it."""

    uid: str
    namespace: str
    name: str
    pods: frozenset[str]
    cdi_names: tuple[str, ...]

    def is_of(self, pod: str, namespace: str) -> bool:
        """Whether the kubelet has it for this pod (a UID)."""
        return pod in self.pods and self.namespace == namespace


@dataclass(frozen=True, slots=True)
class KubeletClaims:
    """``unreadable`` says why nothing is known; then every claim counts as listed."""

    claims: Mapping[str, KubeletClaim] = field(default_factory=dict)
    unreadable: str = ""

    def lists(self, uid: str) -> bool:
        return bool(self.unreadable) or uid in self.claims

    def pods(self, uid: str) -> frozenset[str]:
        claim = self.claims.get(uid)
        return claim.pods if claim else frozenset()

    def cdi_names(self, uid: str) -> tuple[str, ...]:
        claim = self.claims.get(uid)
        return claim.cdi_names if claim else ()


class KubeletStateFile:
    """The file of the kubelet with root directory ``kubelet_root``. It is written anew for each claim that comes or
    goes, and so read as often: only what differs from the last time is decoded. May be read from several threads."""

    def __init__(self, kubelet_root: Path) -> None:
        self._root = kubelet_root
        self._known: Entries = {}
        self.path = kubelet_root / FILE_NAME

    def read(self, uid: str | None = None) -> KubeletClaims:
        """All claims; with ``uid`` perhaps that one only, which costs the same however many there are."""
        try:
            text = read_regular(self.path)
        except FileNotFoundError:
            # A kubelet that has never had a claim; without the root it is our own view that is wrong.
            return KubeletClaims() if self._root.is_dir() else _unreadable(f"{self._root} doesn't exist")
        except OSError as error:
            return _unreadable(f"read {self.path}: {error.strerror}")
        found, self._known = _parse(text, uid, self._known)
        return _unreadable(f"read {self.path}: {found.unreadable}") if found.unreadable else found


Entries = Mapping[str, KubeletClaim]
"""By the text of the claim's entry."""


def parse(text: bytes, uid: str | None = None) -> KubeletClaims:
    """See KubeletStateFile.read. Never raises."""
    return _parse(text, uid, {})[0]


def _parse(text: bytes, uid: str | None, known: Entries) -> tuple[KubeletClaims, Entries]:
    """``known`` are entries of an earlier reading; those that are to be known at the next come back."""
    try:
        outer = json.loads(text)
        data, checksum = outer["Data"], outer["Checksum"]
        if zlib.crc32(data.encode()) != checksum:
            return _unreadable("its checksum doesn't match its data"), known
        found = _find(data, uid) if uid else None
        if found is not None:
            return KubeletClaims({found.uid: found}), known
        entries = _decoded(data, known)
        if entries is not None:
            return KubeletClaims({claim.uid: claim for claim in entries.values()}), entries
        inner = json.loads(data)
        if inner["kind"] != _KIND:
            return _unreadable(f"unknown kind {inner['kind']!r}"), known
        claims = [_claim(entry) for entry in inner["ClaimInfoStateList"] or ()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _unreadable(f"{type(error).__name__}: {error}"), known
    return KubeletClaims({claim.uid: claim for claim in claims}), known


def _decoded(data: str, known: Entries) -> Entries | None:
    """Each claim by its entry; None where the layout isn't the known one."""
    if not data.startswith(_KNOWN_START + _ENTRY):
        return None
    *first, last = data[len(_KNOWN_START) + len(_ENTRY) :].split(_ENTRY)
    entries = [*(f"{_ENTRY}{entry.removesuffix(',')}" for entry in first), f"{_ENTRY}{last.removesuffix(']}')}"]
    try:
        return {entry: known.get(entry) or _claim(json.loads(entry)) for entry in entries}
    except ValueError:
        return None


def _find(data: str, uid: str) -> KubeletClaim | None:
    """The claim's entry, decoded alone. None proves nothing: the kubelet may have another layout than the known."""
    begin = data.find(f'{{"ClaimUID":{json.dumps(uid)},')
    if begin < 0 or not data.startswith(_KNOWN_START):
        return None
    return _claim(json.JSONDecoder().raw_decode(data, begin)[0])


def _claim(entry: Mapping[str, Any]) -> KubeletClaim:
    """Unknown fields are passed over: a newer kubelet may have more of them."""
    ids = [
        cdi_id
        for driver in (entry["DriverState"] or {}).values()
        for device in driver["Devices"] or ()
        for cdi_id in device["CDIDeviceIDs"] or ()
    ]
    ours = (cdi_id.removeprefix(_OUR_IDS) for cdi_id in ids if cdi_id.startswith(_OUR_IDS))
    return KubeletClaim(
        uid=entry["ClaimUID"],
        namespace=entry["Namespace"],
        name=entry["ClaimName"],
        pods=frozenset(entry["PodUIDs"] or ()),
        cdi_names=tuple(dict.fromkeys(ours)),
    )


def _unreadable(why: str) -> KubeletClaims:
    return KubeletClaims(unreadable=why)
