"""A real one-node Kubernetes, as plain processes in a network namespace of its own.

Only /var/lib/kubelet, /var/run/cdi, /etc/cdi and the kubepods cgroups are the host's, so one node at a time. Everything
that is changed on the host is put back by ``down``. Order of stopping: pods, kubelet, containerd, API server, etcd.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.harness import binaries, config, images, pki
from tests.cluster.harness.kubectl import Kubectl, KubectlError
from tests.cluster.harness.processes import Supervisor

NAMESPACE = "gpuclaim-test"
KUBELET_ROOT = Path("/var/lib/kubelet")
OWNS_KUBELET_ROOT = "owns-kubelet-root"
TOOLS = ("runc", "openssl", "ip", "nsenter", "mount", "conntrack")
SYSCTLS = ("vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops", "net.ipv4.ip_forward",
           "fs.inotify.max_user_instances")  # fmt: skip


def missing_requirement() -> str | None:
    """Why no node can be started here, or None."""
    if os.geteuid() != 0:
        return "not root: a node of its own needs root (or give a cluster by KUBECONFIG)"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install runc openssl iproute2 util-linux conntrack)"
    if not Path("/usr/lib/cni/bridge").exists():
        return "not installed: containernetworking-plugins"
    if not Path("/bin/busybox").exists():
        return "not installed: busybox-static"
    if any(KUBELET_ROOT.glob("*")) and not (node_root() / OWNS_KUBELET_ROOT).exists():
        return f"{KUBELET_ROOT} isn't empty: this machine seems to have a kubelet of its own"
    return binaries.missing_requirement()


def node_root() -> Path:
    return binaries.cache_root() / "node"


def _run(*command: str | Path, check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


def _sysctl(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


@dataclass(slots=True)
class RealNode:
    """``up`` starts what isn't running; ``down`` ends only what was started here."""

    layout: config.Layout
    feature_gates: str = ""
    kubelet: Path | None = None
    """Another binary than the release's own."""
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        enter = ("nsenter", f"--net=/run/netns/{NAMESPACE}", "--")
        self.supervisor = Supervisor(self.layout.run / "pids", self.layout.root / "log", enter)

    @property
    def name(self) -> str:
        return config.NODE_NAME

    @property
    def enter(self) -> tuple[str, ...]:
        """What to put before a command that talks to the API server."""
        return self.supervisor.prefix

    def kubectl(self, kubeconfig: Path | None = None) -> Kubectl:
        binary = str(self.layout.binaries / "kubectl")
        return Kubectl((*self.enter, binary, f"--kubeconfig={kubeconfig or self.layout.admin_kubeconfig}"))

    def up(self) -> None:
        self._prepare_host()
        self._write_configuration()
        self._start_control_plane()
        self._start_node()

    # --- host -----------------------------------------------------------------------------------------------
    def _prepare_host(self) -> None:
        for folder in (self.layout.run / "cni" / "net.d", self.layout.config, self.layout.run / "containerd",
                       Path("/etc/cdi"), Path("/var/run/cdi"), KUBELET_ROOT, Path("/var/log/pods")):  # fmt: skip
            folder.mkdir(parents=True, exist_ok=True)
        (self.layout.root / OWNS_KUBELET_ROOT).touch()
        saved = self.layout.run / "sysctl.json"
        if not saved.exists():
            saved.write_text(json.dumps({name: _sysctl(name).read_text() for name in SYSCTLS}))
        _sysctl("fs.inotify.max_user_instances").write_text("1024")
        if NAMESPACE not in _run("ip", "netns", "list").split():
            _run("ip", "netns", "add", NAMESPACE)
        _run(*self.enter, "ip", "link", "set", "lo", "up")
        addresses = _run(*self.enter, "ip", "-4", "-o", "addr")
        for address in (config.API_VIP, config.NODE_IP):
            if f" {address}/" not in addresses:
                _run(*self.enter, "ip", "addr", "add", f"{address}/32", "dev", "lo")
        _run(*self.enter, "sysctl", "-qw", "net.ipv4.ip_forward=1", check=False)
        if not os.path.ismount(KUBELET_ROOT):
            # / is a private mount in containers; mountPropagation needs a shared one, private first for its own group
            _run("mount", "--bind", KUBELET_ROOT, KUBELET_ROOT)
            _run("mount", "--make-private", KUBELET_ROOT)
        _run("mount", "--make-shared", KUBELET_ROOT)

    def _write_configuration(self) -> None:
        layout = self.layout
        made = pki.make_pki(layout.pki, self.name, config.NODE_IP, [config.API_VIP, config.SERVICE_API])
        made.kubeconfig(layout.admin_kubeconfig, certificate="admin")
        for component in ("controller-manager", "scheduler", "kubelet"):
            made.kubeconfig(layout.config / f"{component}.conf", certificate=component)
        (layout.config / "etcd.yaml").write_text(config.etcd(layout))
        (layout.config / "containerd.toml").write_text(config.containerd(layout))
        (layout.config / "kubelet.yaml").write_text(config.kubelet(layout))
        (layout.run / "cni" / "net.d" / "10-bridge.conflist").write_text(json.dumps(config.cni(layout)))

    # --- processes ------------------------------------------------------------------------------------------
    @property
    def release(self) -> tuple[int, ...]:
        """For example (1, 36, 3)."""
        return tuple(int(part) for part in binaries.selected_release().split("."))

    def start(self, name: str, arguments: Sequence[str], binary: Path | None = None) -> None:
        if self.supervisor.pid(name) is not None:
            return
        path = f"{self.layout.binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        gates = [f"--feature-gates={self.feature_gates}"] if self.feature_gates and name.startswith("kube") else []
        command: list[str | Path] = [binary or self.layout.binaries / name, *arguments, *gates]
        self.supervisor.start(name, command, {"PATH": path, "HOME": "/root"})

    def start_api_server(self) -> None:
        self.start("kube-apiserver", config.kube_apiserver(self.layout))
        ready = self.kubectl()
        self.supervisor.wait(
            "kube-apiserver", "API server ready", 60, lambda: _answers(ready, "get", "--raw", "/readyz")
        )

    def start_containerd(self) -> None:
        self.start("containerd", [f"--config={self.layout.config}/containerd.toml"])

    def _start_control_plane(self) -> None:
        self.start("etcd", [f"--config-file={self.layout.config}/etcd.yaml"])
        self.start_containerd()
        self.start_api_server()
        self.start("kube-controller-manager", config.kube_controller_manager(self.layout))
        self.start("kube-scheduler", config.kube_scheduler(self.layout))

    def start_kubelet(self) -> None:
        self.start(
            "kubelet",
            [
                f"--config={self.layout.config}/kubelet.yaml",
                f"--kubeconfig={self.layout.config}/kubelet.conf",
                f"--hostname-override={self.name}",
                f"--node-ip={config.NODE_IP}",
                f"--root-dir={KUBELET_ROOT}",
                "--v=2",
            ],
            self.kubelet,
        )

    def _start_node(self) -> None:
        self.supervisor.wait("containerd", "containerd up", 20, lambda: self._ctr("version"))
        self._import_images()
        self.start_kubelet()
        kubectl = self.kubectl()
        self.supervisor.wait("kubelet", "node registered", 60, lambda: _answers(kubectl, "get", "node", self.name))
        kubectl.run("wait", "--for=condition=Ready", f"node/{self.name}", "--timeout=90s", timeout=100)
        found = lambda: _answers(kubectl, "get", "serviceaccount", "default", "-n", "default")  # noqa: E731
        self.supervisor.wait("kube-controller-manager", "default service account", 60, found)

    def _ctr(self, *arguments: str | Path) -> bool:
        command = [
            self.layout.binaries / "ctr",
            f"--address={self.layout.containerd_socket}",
            "-n",
            "k8s.io",
            *arguments,
        ]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def _import_images(self) -> None:
        folder = self.layout.root / "images"
        folder.mkdir(exist_ok=True)
        for name in ("pause", "busybox"):
            archive = folder / f"{name}.tar"
            if not archive.exists():
                if name == "pause":
                    images.make_pause(self.layout.binaries / "pause", archive)
                else:
                    images.make_busybox(archive)
            if not self._ctr("images", "import", archive):
                raise RuntimeError(f"import {archive} into containerd")

    def restart_kubelet(self) -> None:
        self.supervisor.stop("kubelet")
        self.start_kubelet()

    # --- the end --------------------------------------------------------------------------------------------
    def down(self) -> None:
        """Ends pods and processes, puts the host back, and wipes what the node kept."""
        stop = self.supervisor.stop
        stop("kubelet")
        if self.supervisor.pid("containerd") is not None:
            crictl = str(self.layout.binaries / "crictl")
            address = f"unix://{self.layout.containerd_socket}"
            subprocess.run([crictl, "-r", address, "rmp", "-fa"], check=False, capture_output=True, timeout=120)
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "containerd", "etcd"):
            stop(name, 15)
        _run("ip", "netns", "del", NAMESPACE, check=False)
        self._unmount()
        saved = self.layout.run / "sysctl.json"
        if saved.exists():
            for name, value in json.loads(saved.read_text()).items():
                _sysctl(name).write_text(value)
        for hierarchy in Path("/sys/fs/cgroup").glob("*/kubepods"):
            _run("find", hierarchy, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";", check=False)
        shutil.rmtree(self.layout.root, ignore_errors=True)

    def _unmount(self) -> None:
        for _ in range(3):
            mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
            ours = [mount for mount in mounts if mount.startswith((f"{KUBELET_ROOT}", f"{self.layout.root}/"))]
            for mount in sorted(ours, reverse=True):
                _run("umount", mount, check=False)
        for entry in KUBELET_ROOT.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


def _answers(kubectl: Kubectl, *arguments: str) -> bool:
    try:
        kubectl.run(*arguments)
    except (KubectlError, subprocess.TimeoutExpired):
        return False
    return True


def is_running() -> bool:
    """Whether a node of this machine is up; ``new_node`` would end it."""
    root = node_root()
    return Supervisor(root / "run" / "pids", root / "log", ()).pid("kubelet") is not None


def new_node(feature_gates: str = "") -> RealNode:
    """A node of the selected release, everything of an earlier run ended and wiped."""
    layout = config.Layout(node_root(), binaries.ensure_binaries())
    node = RealNode(layout, feature_gates)
    if layout.root.exists():
        node.down()
    return node
