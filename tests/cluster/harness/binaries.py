"""Builds the node's binaries from Go modules, once per set of versions, into a cache outside the clone.

One small go.mod per tool (tests/cluster/tools) pins what each needs without binding the others. Kubernetes' go.mod
names its staging modules at v0.0.0, hence the replaces there. Needs Go 1.26: 1.27's json v2 breaks the API server's
OpenAPI v2.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1] / "tools"
CONTAINERD = "github.com/containerd/containerd/v2"
KUBERNETES = "k8s.io/kubernetes"
COMPONENT_VERSION = "k8s.io/component-base/version"

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "etcd": ("go.etcd.io/etcd/server/v3",),
    "containerd": tuple(f"{CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
    "crictl": ("sigs.k8s.io/cri-tools/cmd/crictl",),
    "kubernetes": tuple(
        f"{KUBERNETES}/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
    ),
}
RENAMED = {"etcd": {"v3": "etcd", "server": "etcd"}}
PAUSE_C = """#include <signal.h>
#include <unistd.h>
static void stop(int s) { _exit(0); }
int main(void) { signal(SIGTERM, stop); signal(SIGINT, stop); for (;;) pause(); }
"""


def cache_root() -> Path:
    """Where everything that outlives a run is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuclaim"


def missing_requirement() -> str | None:
    """Why the binaries can't be built here, or None."""
    go = shutil.which("go")
    if go is None:
        return "no go in PATH: the node's binaries are built with Go 1.26"
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout.strip()
    if not re.match(r"go1\.26(\.|$)", answer):
        return f"{go} is {answer or 'broken'}: Kubernetes 1.36 needs Go 1.26"
    if shutil.which("gcc") is None:
        return "no gcc in PATH: the pause image's binary is built with it"
    return None


def _key() -> str:
    digest = hashlib.sha256(PAUSE_C.encode())
    for path in sorted(TOOLS.glob("*/go.*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(tool: str, module: str) -> str:
    match = re.search(rf"^(?:require )?\s*{re.escape(module)} v(\S+)", (TOOLS / tool / "go.mod").read_text(), re.M)
    if match is None:
        raise LookupError(f"find {module} in {TOOLS / tool / 'go.mod'}")
    return match[1]


def kubernetes_version() -> str:
    """For example 1.36.3."""
    return _version("kubernetes", KUBERNETES)


def _stamps(tool: str) -> str:
    if tool == "containerd":
        return f"-X {CONTAINERD}/version.Version=v{_version(tool, CONTAINERD)}"
    if tool == "kubernetes":
        version = kubernetes_version()
        major, minor, _ = version.split(".")
        return (
            f"-X {COMPONENT_VERSION}.gitVersion=v{version} -X {COMPONENT_VERSION}.gitMajor={major} "
            f"-X {COMPONENT_VERSION}.gitMinor={minor} -X {COMPONENT_VERSION}.gitTreeState=clean"
        )
    return ""


def _build(tool: str, into: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    command = ["go", "build", "-trimpath", "-ldflags", f"-s -w {_stamps(tool)}".strip(), "-o", f"{into}/"]
    subprocess.run([*command, *PACKAGES[tool]], cwd=TOOLS / tool, env=environment, check=True)
    for built, wanted in RENAMED.get(tool, {}).items():
        if (into / built).exists():
            (into / built).rename(into / wanted)


def ensure_binaries() -> Path:
    """The folder of the binaries for the pinned versions, built when it isn't there. Minutes the first time."""
    folder = cache_root() / "bin" / _key()
    if folder.exists():
        return folder
    building = folder.with_name(f"{folder.name}.building-{os.getpid()}")
    building.mkdir(parents=True)
    try:
        for tool in PACKAGES:
            print(f"building {tool} from Go modules (minutes the first time) ...", file=sys.stderr, flush=True)
            _build(tool, building)
        source = building / "pause.c"
        source.write_text(PAUSE_C)
        subprocess.run(["gcc", "-Os", "-static", "-s", "-o", building / "pause", source], check=True)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder
