"""Rows for the ledger's tests."""

from kubeletplugin.ledger.model import ClaimRecord, HeldDevice


def gpu(index: int, *, admin: bool = False, share_id: str = "") -> HeldDevice:
    return HeldDevice(f"gpu-{index}", f"GPU-{index}", f"GPU-{index}", True, share_id, admin)


def mig(index: int, part: int) -> HeldDevice:
    return HeldDevice(f"gpu-{index}-mig-{part}", f"MIG-{index}-{part}", f"GPU-{index}", False)


def record(uid: str = "a", *, fingerprint: str = "f", pods: frozenset[str] = frozenset()) -> ClaimRecord:
    return ClaimRecord(
        uid=uid,
        namespace="default",
        name=f"claim-{uid}",
        fingerprint=fingerprint,
        result="[]",
        cdi_names=(f"{uid}-gpu-0",),
        aliases=(),
        boot_id="boot-1",
        epoch=3,
        prepared_at="2026-01-02T03:04:05+00:00",
        pods=pods,
    )
