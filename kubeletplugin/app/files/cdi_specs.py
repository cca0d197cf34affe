"""The claims' CDI files on a host whose driver may come late, or move to another root when it is upgraded.

A driver in a container makes its own device nodes, after its libraries can be seen, so both roots are looked for anew
at every look at the hardware, and before a claim is refused for something that is missing there.
"""

import threading
from collections.abc import Sequence

from kubeletplugin.app.host.hardware import Hardware
from kubeletplugin.cdi.api import ClaimDevice
from kubeletplugin.cdi.claims import ClaimSpecFiles
from kubeletplugin.cdi.driver import DriverSpecFile
from kubeletplugin.cdi.hostnodes import HostNodes, find_dev_root
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.errors import ClaimError


class HostSpecs:
    """Implements cdi.api.ClaimSpecs by the files for the driver and the device nodes where they were found last."""

    def __init__(self, writer: SpecWriter, hardware: Hardware) -> None:
        self._writer = writer
        self._hardware = hardware
        self._lock = threading.Lock()
        self._version: str | None = None
        self._roots = self._find(hardware.host)
        self._driver, self._claims = self._made_for(*self._roots)

    def _find(self, without: DriverRoot) -> tuple[DriverRoot, DriverRoot]:
        """Where the driver is, ``without`` one there, and the device nodes."""
        root = self._hardware.locate_driver() or without
        return root, find_dev_root(root, self._hardware.host)

    def _made_for(self, root: DriverRoot, dev: DriverRoot) -> tuple[DriverSpecFile, ClaimSpecFiles]:
        hardware = self._hardware
        nodes = HostNodes(dev, proc=hardware.proc, sys=hardware.sys)
        driver = DriverSpecFile(self._writer, nodes, root, host_root=hardware.host)
        return driver, ClaimSpecFiles(self._writer, nodes, driver)

    def refresh(self, driver_version: str) -> None:
        """To be called at every look at the hardware that got an answer; errors as of cdi.driver.DriverSpecFile."""
        with self._lock:
            self._version = driver_version
            if not self._follow():
                self._driver.refresh(driver_version)

    def restore(self) -> bool:
        """Writes the driver's file if it isn't as it should be; True when it wasn't. Nothing before a first look."""
        with self._lock:
            return self._version is not None and self._driver.refresh(self._version)

    def _follow(self) -> bool:
        """True when a root is another one now; the driver's file is rewritten for it before any claim's."""
        found = self._find(self._roots[0])
        if found == self._roots:
            return False
        driver, claims = self._made_for(*found)
        if self._version is not None:
            driver.refresh(self._version)
        self._roots, self._driver, self._claims = found, driver, claims
        return True

    def cdi_name(self, claim_uid: str, device_name: str, share_id: str | None = None) -> str:
        return self._claims.cdi_name(claim_uid, device_name, share_id)

    def device_ids(self, cdi_name: str) -> tuple[str, ...]:
        return self._claims.device_ids(cdi_name)

    def write(self, claim_uid: str, devices: Sequence[ClaimDevice], aliases: Sequence[str] = ()) -> bool:
        try:
            return self._claims.write(claim_uid, devices, aliases)
        except ClaimError:
            with self._lock:
                moved = self._follow()
            if not moved:
                raise
            return self._claims.write(claim_uid, devices, aliases)

    def remove(self, claim_uid: str) -> None:
        self._claims.remove(claim_uid)

    def exists(self, claim_uid: str) -> bool:
        return self._claims.exists(claim_uid)

    def claim_uids(self) -> frozenset[str]:
        return self._claims.claim_uids()
