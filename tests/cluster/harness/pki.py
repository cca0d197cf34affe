"""The test cluster's certificates and kubeconfigs, made with openssl; good for one run's folder, for nothing else."""

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

API_SERVER = "https://127.0.0.1:6443"


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Pki:
    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    def authority(self, name: str) -> None:
        _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", self.path(f"{name}.key"))
        _openssl(
            *("req", "-x509", "-new", "-sha256", "-days", "3650", "-subj", f"/CN=gpuclaim-test-{name}"),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,digitalSignature,cRLSign,keyCertSign"),
            *("-key", self.path(f"{name}.key"), "-out", self.path(f"{name}.crt")),
        )

    def certificate(
        self, name: str, common_name: str, *, group: str = "", server: str = "", authority: str = "ca"
    ) -> None:
        """A client certificate, or a server's for the alternative names in ``server``."""
        key, request, extensions = (self.path(f"{name}.{suffix}") for suffix in ("key", "csr", "ext"))
        _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", key)
        subject = f"/O={group}/CN={common_name}" if group else f"/CN={common_name}"
        _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
        lines = ["basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature"]
        lines.append(f"extendedKeyUsage={'serverAuth' if server else 'clientAuth'}")
        if server:
            lines.append(f"subjectAltName={server}")
        extensions.write_text("\n".join(lines) + "\n")
        _openssl(
            *("x509", "-req", "-in", request, "-sha256", "-days", "3650", "-extfile", extensions),
            *("-CA", self.path(f"{authority}.crt"), "-CAkey", self.path(f"{authority}.key"), "-CAcreateserial"),
            *("-out", self.path(f"{name}.crt")),
        )

    def _data(self, name: str) -> str:
        return base64.b64encode(self.path(name).read_bytes()).decode()

    def kubeconfig(self, path: Path, *, certificate: str = "", token: str = "") -> None:
        """A kubeconfig for a client certificate, or for a bearer token."""
        user: dict[str, str] = {"token": token}
        if certificate:
            user = {
                "client-certificate-data": self._data(f"{certificate}.crt"),
                "client-key-data": self._data(f"{certificate}.key"),
            }
        cluster = {"server": API_SERVER, "certificate-authority-data": self._data("ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)


def make_pki(folder: Path, node_name: str, node_ip: str, api_addresses: list[str]) -> Pki:
    """All certificates of the cluster; kept when they are there already."""
    pki = Pki(folder)
    if pki.path("done").exists():
        return pki
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki.authority("ca")
    pki.authority("front-proxy-ca")
    _openssl("genrsa", "-out", pki.path("sa.key"), "2048")
    _openssl("rsa", "-in", pki.path("sa.key"), "-pubout", "-out", pki.path("sa.pub"))
    names = ["DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc", "IP:127.0.0.1"]
    names += [f"IP:{address}" for address in api_addresses]
    pki.certificate("apiserver", "kube-apiserver", server=",".join(names))
    pki.certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", group="system:masters")
    pki.certificate("admin", "kubernetes-admin", group="system:masters")
    pki.certificate("controller-manager", "system:kube-controller-manager")
    pki.certificate("scheduler", "system:kube-scheduler")
    pki.certificate("kubelet", f"system:node:{node_name}", group="system:nodes")
    kubelet_names = f"DNS:{node_name},DNS:localhost,IP:127.0.0.1,IP:{node_ip}"
    pki.certificate("kubelet-serving", f"system:node:{node_name}", group="system:nodes", server=kubelet_names)
    pki.certificate("front-proxy", "front-proxy-client", authority="front-proxy-ca")
    pki.path("done").touch()
    return pki
