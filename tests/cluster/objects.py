"""The objects that the cases ask for, as short as a reader would write them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.harness import images

Json = dict[str, Any]
IMAGE = os.environ.get("GPUCLAIM_TEST_IMAGE", images.BUSYBOX)
GPU_CLASS = "gpu.nvidia.com"
MIG_CLASS = "mig.nvidia.com"


def request(
    name: str = "gpu", *, device_class: str = GPU_CLASS, cel: str = "", count: int = 1, admin: bool = False
) -> Json:
    exactly: Json = {"deviceClassName": device_class}
    if count != 1:
        exactly |= {"allocationMode": "ExactCount", "count": count}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    if admin:
        exactly["adminAccess"] = True
    return {"name": name, "exactly": exactly}


def claim_spec(*requests: Json, constraints: Sequence[Json] = (), config: Sequence[Json] = ()) -> Json:
    devices: Json = {"requests": list(requests or (request(),))}
    if constraints:
        devices["constraints"] = list(constraints)
    if config:
        devices["config"] = list(config)
    return {"devices": devices}


def claim(name: str, spec: Json | None = None) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": spec or claim_spec(),
    }


def template(name: str, spec: Json | None = None) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec or claim_spec()},
    }


def container(name: str = "c", *, command: str = "", claims: Sequence[str | tuple[str, str]] = ("gpu",)) -> Json:
    """``claims`` are names of the pod's claims, or (name, request)."""
    wanted = [{"name": c} if isinstance(c, str) else {"name": c[0], "request": c[1]} for c in claims]
    script = command or "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "resources": {"claims": wanted},
    }


def pod(
    name: str,
    *,
    claim_name: str = "",
    template_name: str = "",
    containers: Sequence[Json] = (),
    grace: int = 1,
    labels: Mapping[str, str] | None = None,
    restart: str = "Always",
) -> Json:
    source = {"resourceClaimName": claim_name} if claim_name else {"resourceClaimTemplateName": template_name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "terminationGracePeriodSeconds": grace,
            "restartPolicy": restart,
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "gpu", **source}],
            "containers": list(containers or (container(),)),
        },
    }
