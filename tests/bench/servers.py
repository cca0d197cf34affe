"""The API servers to measure beside: the in-memory one always, Kubernetes' own where its binaries are cached.

Both are processes of their own, speak TLS on free loopback ports, and take a bearer token, as an agent in a pod meets
its server. Only what was started here is ended.
"""

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.cluster.harness import binaries, pki

TOKEN = "bench"
START_SECONDS = 60.0


class Server(Protocol):
    """``requests`` is by verb and plural, None where the server can't tell ours from its own."""

    @property
    def label(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def authority(self) -> Path: ...

    def requests(self) -> Counter[str] | None: ...


@dataclass(frozen=True, slots=True)
class FakeServer:
    url: str
    authority: Path
    process: subprocess.Popen[str]
    label: str = "in-memory API server"

    def requests(self) -> Counter[str]:
        """Those that weren't for claims are named with what they were for."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("ask the API server: it was started without pipes")
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seen: dict[str, int] = json.loads(self.process.stdout.readline())
        return Counter({name.removesuffix(" resourceclaims"): count for name, count in seen.items()})


@dataclass(frozen=True, slots=True)
class RealServer:
    url: str
    authority: Path
    label: str

    def requests(self) -> None:
        return None


@contextlib.contextmanager
def fake_server(folder: Path) -> Iterator[FakeServer]:
    command = [sys.executable, "-m", "tests.bench.fake_apiserver", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("start the in-memory API server: no pipe")
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("start the in-memory API server: it ended; its stderr is above")
        yield FakeServer(url, folder / "ca.crt", process)
    finally:
        _end([process])


def cached_binaries() -> Path | None:
    """Etcd and kube-apiserver of the selected release; nothing is built for a benchmark."""
    folder = binaries.folder_of(binaries.selected_release())
    return folder if folder.exists() else None


@contextlib.contextmanager
def real_server(folder: Path, tools: Path) -> Iterator[RealServer]:
    """etcd and kube-apiserver on free ports of the loopback interface."""
    port, client, peer = _free_ports(3)
    made = pki.make_pki(folder / "pki", "bench", "127.0.0.1", [])
    (folder / "tokens.csv").write_text(f'{TOKEN},bench,bench,"system:masters"\n')
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.append(_start(folder, [tools / "etcd", *_etcd(folder, client, peer)]))
        running.append(_start(folder, [tools / "kube-apiserver", *_kube_apiserver(folder, made, port, client)]))
        server = RealServer(f"https://127.0.0.1:{port}", made.path("ca.crt"), f"kube-apiserver {_version(tools)}")
        _wait_ready(server, folder, running)
        yield server
    finally:
        _end(reversed(running))


def _etcd(folder: Path, client: int, peer: int) -> list[str]:
    return [
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
        "--log-level=warn",
        "--unsafe-no-fsync",
    ]


def _kube_apiserver(folder: Path, made: pki.Pki, port: int, etcd: int) -> list[str]:
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--service-cluster-ip-range=10.99.0.0/24",
        "--authorization-mode=RBAC",
        f"--token-auth-file={folder}/tokens.csv",
        f"--tls-cert-file={made.path('apiserver.crt')}",
        f"--tls-private-key-file={made.path('apiserver.key')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={made.path('sa.pub')}",
        f"--service-account-signing-key-file={made.path('sa.key')}",
        "--endpoint-reconciler-type=none",
    ]


def _start(folder: Path, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait_ready(server: RealServer, folder: Path, running: Sequence[subprocess.Popen[bytes]]) -> None:
    context = ssl.create_default_context(cafile=str(server.authority))
    request = urllib.request.Request(f"{server.url}/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and all(process.poll() is None for process in running):
        with contextlib.suppress(urllib.error.URLError, OSError):
            opener.open(request, timeout=5).close()
            return
        time.sleep(0.2)
    logs = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
    raise RuntimeError(f"start {server.label}: it doesn't get ready\n{logs}")


def _version(tools: Path) -> str:
    answer = subprocess.run([tools / "kube-apiserver", "--version"], capture_output=True, text=True, check=True)
    return answer.stdout.split()[-1]


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _end(processes: Iterator[subprocess.Popen[bytes]] | Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def missing_requirement() -> str | None:
    return None if shutil.which("openssl") else "no openssl in PATH: the API servers' certificates are made with it"
