"""The configuration of the node's processes. Figures and pitfalls that shaped it are beside each value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

NODE_NAME = "node-1"
# On lo of the node's own network namespace: the `kubernetes` Service's endpoint can't be in 127/8.
API_VIP = "10.98.255.1"
NODE_IP = "10.98.255.2"
SERVICE_CIDR = "10.96.0.0/16"
SERVICE_API = "10.96.0.1"
POD_CIDR = "10.244.0.0/24"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the node keeps its things; ``binaries`` is read only."""

    root: Path
    binaries: Path

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd" / "containerd.sock"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.root / "admin.conf"


def containerd(layout: Layout) -> str:
    # restrict_oom_score_adj: there is no CAP_SYS_RESOURCE; SystemdCgroup: cgroup v1, cgroupfs driver
    return f"""version = 3
root = "{layout.root}/containerd"
state = "{layout.run}/containerd"
[grpc]
  address = "{layout.containerd_socket}"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "localhost/pause:3.10"
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{layout.run}/cni/net.d"
"""


def cni(layout: Layout) -> dict[str, Any]:
    return {
        "cniVersion": "1.0.0",
        "name": "bridge",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipam": {"type": "host-local", "dataDir": f"{layout.run}/cni/ipam", "ranges": [[{"subnet": POD_CIDR}]]},
            }
        ],
    }


def etcd(layout: Layout) -> str:
    return yaml.safe_dump(
        {
            "name": "default",
            "data-dir": f"{layout.root}/etcd",
            "listen-client-urls": "http://127.0.0.1:2379",
            "advertise-client-urls": "http://127.0.0.1:2379",
            "listen-peer-urls": "http://127.0.0.1:2380",
            "initial-advertise-peer-urls": "http://127.0.0.1:2380",
            "initial-cluster": "default=http://127.0.0.1:2380",
            "log-level": "warn",
            "unsafe-no-fsync": True,
        }
    )


def kubelet(layout: Layout) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_IP,
            "healthzBindAddress": "127.0.0.1",
            "readOnlyPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{layout.pki}/kubelet-serving.crt",
            "tlsPrivateKeyFile": f"{layout.pki}/kubelet-serving.key",
            "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            "maxPods": 250,
            "resolvConf": "/etc/resolv.conf",
            "volumePluginDir": f"{layout.run}/volumeplugins",
            # Images can't be pulled again.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "nodeStatusUpdateFrequency": "5s",
            "shutdownGracePeriod": "0s",
            # The default of 5 a second would make a burst of pods wait for it.
            "kubeAPIQPS": 50,
            "kubeAPIBurst": 100,
            "podsPerCore": 0,
        }
    )


def kube_apiserver(layout: Layout) -> list[str]:
    pki = layout.pki
    return [
        "--bind-address=127.0.0.1",
        "--secure-port=6443",
        f"--advertise-address={API_VIP}",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        "--profiling=false",
    ]


def kube_controller_manager(layout: Layout) -> list[str]:
    kubeconfig = f"{layout.config}/controller-manager.conf"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.pki}/sa.key",
        f"--root-ca-file={layout.pki}/ca.crt",
    ]


def kube_scheduler(layout: Layout) -> list[str]:
    kubeconfig = f"{layout.config}/scheduler.conf"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]
