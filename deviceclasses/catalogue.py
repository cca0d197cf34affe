"""The DeviceClasses: what a claim may ask for by name.

A CEL error fails a pod's scheduling in the whole cluster, and a class is evaluated for every device of every driver.
So each selector tests ``device.driver``, then ``type``, before anything else, and ``&&`` stops there for the devices
of others. Selectors keep to the oldest CEL of resource.k8s.io, since queueing layers evaluate them with less.
"""

from typing import Any

from deviceclasses import names

_TYPES = {"gpu.nvidia.com": names.TYPE_GPU, "mig.nvidia.com": names.TYPE_MIG}


def device_classes() -> list[dict[str, Any]]:
    """The classes as objects for server-side apply, in the order of their names."""
    return [_device_class(name, device_type) for name, device_type in sorted(_TYPES.items())]


def _device_class(name: str, device_type: str) -> dict[str, Any]:
    expression = (
        f"device.driver == '{names.DRIVER_NAME}' && device.attributes['{names.DRIVER_NAME}'].type == '{device_type}'"
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
