"""Wire messages of both DRAPlugin versions to the agent's own types and back; v1beta1 is v1 without share ids."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from kubeletplugin.pb.dra.v1 import api_pb2 as v1
from kubeletplugin.pb.dra.v1beta1 import api_pb2 as v1beta1
from kubeletplugin.prepare.model import ClaimRef, PreparedDevice, PrepareResult


class WireClaim(Protocol):
    """A Claim message of either version."""

    @property
    def uid(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...


def claim_refs(claims: Iterable[WireClaim]) -> tuple[ClaimRef, ...]:
    """The claims asked for, each UID once: an answer has one entry per UID."""
    refs = {claim.uid: ClaimRef(claim.uid, claim.namespace, claim.name) for claim in claims}
    return tuple(refs.values())


def prepare_response_v1(results: Mapping[str, PrepareResult]) -> v1.NodePrepareResourcesResponse:
    response = v1.NodePrepareResourcesResponse()
    for uid, result in results.items():
        entry = response.claims[uid]
        entry.error = result.error
        for device in result.devices:
            entry.devices.append(
                v1.Device(
                    request_names=device.request_names,
                    pool_name=device.pool_name,
                    device_name=device.device_name,
                    cdi_device_ids=device.cdi_device_ids,
                    share_id=device.share_id,
                )
            )
    return response


def prepare_response_v1beta1(results: Mapping[str, PrepareResult]) -> v1beta1.NodePrepareResourcesResponse:
    response = v1beta1.NodePrepareResourcesResponse()
    for uid, result in results.items():
        entry = response.claims[uid]
        entry.error = result.error
        for device in result.devices:
            entry.devices.append(
                v1beta1.Device(
                    request_names=device.request_names,
                    pool_name=device.pool_name,
                    device_name=device.device_name,
                    cdi_device_ids=device.cdi_device_ids,
                )
            )
    return response


def prepare_results(response: v1.NodePrepareResourcesResponse) -> dict[str, PrepareResult]:
    return {
        uid: PrepareResult(
            devices=tuple(
                PreparedDevice(
                    request_names=tuple(device.request_names),
                    pool_name=device.pool_name,
                    device_name=device.device_name,
                    cdi_device_ids=tuple(device.cdi_device_ids),
                    share_id=device.share_id if device.HasField("share_id") else None,
                )
                for device in entry.devices
            ),
            error=entry.error,
        )
        for uid, entry in response.claims.items()
    }


def wire_claims(claims: Iterable[ClaimRef]) -> list[v1.Claim]:
    return [v1.Claim(uid=claim.uid, namespace=claim.namespace, name=claim.name) for claim in claims]
