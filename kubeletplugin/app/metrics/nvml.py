"""Counting NVML calls that fail."""

import functools
from typing import Any, cast

from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.nvml.api import Nvml
from kubeletplugin.nvml.errors import UNSUPPORTED, NvmlCode, NvmlError

_ANSWERS = UNSUPPORTED | {NvmlCode.NOT_FOUND, NvmlCode.INVALID_ARGUMENT}
"""How NVML says that there is no such thing: what a probing call wants to know, at every look."""


def counted(nvml: Nvml, metrics: Metrics) -> Nvml:
    """The same NVML; calls that hang are counted by whoever gives them up (nvml.worker)."""
    return cast("Nvml", _Counted(nvml, metrics))


class _Counted:
    """By attribute, since the session has some fifty methods and all are treated alike. In the calls' own threads."""

    def __init__(self, nvml: Nvml, metrics: Metrics) -> None:
        self._nvml = nvml
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._nvml, name)

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except NvmlError as error:
                if error.code not in _ANSWERS:
                    self._metrics.nvml_errors.labels(name, _name(error.code)).inc()
                raise

        return run


def _name(code: int) -> str:
    return code.name if isinstance(code, NvmlCode) else str(code)
