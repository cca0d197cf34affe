"""Builds the node's binaries from Go modules, once per set of versions, into a cache outside the clone.

One small go.mod per tool (tests/cluster/tools) pins what each needs without binding the others. Kubernetes' go.mod
names its staging modules at v0.0.0, hence the replaces there. Needs Go 1.26: 1.27's json v2 breaks the API server's
OpenAPI v2. Other Kubernetes releases than the default are under tools/releases, one folder each, beside the same
containerd and etcd; GPUCLAIM_K8S selects one of them.
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
RELEASES = TOOLS / "releases"
SELECTED = "GPUCLAIM_K8S"
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


def folder_of(release: str) -> Path:
    """Where its binaries are, once they are built."""
    return cache_root() / "bin" / _key(release)


def _key(release: str) -> str:
    digest = hashlib.sha256(PAUSE_C.encode())
    for folder in sorted(_module(tool, release) for tool in PACKAGES):
        for path in sorted(folder.glob("go.*")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(module: str, folder: Path) -> str:
    match = re.search(rf"^(?:require )?\s*{re.escape(module)} v(\S+)", (folder / "go.mod").read_text(), re.M)
    if match is None:
        raise LookupError(f"find {module} in {folder / 'go.mod'}")
    return match[1]


def shared_versions() -> Mapping[str, str]:
    """Of what is beside every Kubernetes release."""
    modules = {"etcd": "go.etcd.io/etcd/server/v3", "containerd": CONTAINERD}
    return {tool: _version(module, TOOLS / tool) for tool, module in modules.items()}


def default_release() -> str:
    """For example 1.36.3."""
    return _version(KUBERNETES, TOOLS / "kubernetes")


def releases() -> list[str]:
    """All that can be built, oldest first."""
    found = [default_release(), *(path.name for path in RELEASES.iterdir() if (path / "go.mod").exists())]
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def selected_release() -> str:
    """The one that the environment asks for, or the default."""
    wanted = os.environ.get(SELECTED) or default_release()
    if wanted not in releases():
        raise LookupError(f"{SELECTED}={wanted}: there are {', '.join(releases())} (tests/cluster/tools)")
    return wanted


def _module(tool: str, release: str) -> Path:
    other = tool == "kubernetes" and release != default_release()
    return RELEASES / release if other else TOOLS / tool


def _stamps(tool: str, release: str) -> str:
    if tool == "containerd":
        return f"-X {CONTAINERD}/version.Version=v{_version(CONTAINERD, TOOLS / tool)}"
    if tool == "kubernetes":
        major, minor, _ = release.split(".")
        return (
            f"-X {COMPONENT_VERSION}.gitVersion=v{release} -X {COMPONENT_VERSION}.gitMajor={major} "
            f"-X {COMPONENT_VERSION}.gitMinor={minor} -X {COMPONENT_VERSION}.gitTreeState=clean"
        )
    return ""


def _build(tool: str, release: str, into: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    command = ["go", "build", "-trimpath", "-ldflags", f"-s -w {_stamps(tool, release)}".strip(), "-o", f"{into}/"]
    subprocess.run([*command, *PACKAGES[tool]], cwd=_module(tool, release), env=environment, check=True)
    for built, wanted in RENAMED.get(tool, {}).items():
        if (into / built).exists():
            (into / built).rename(into / wanted)


def ensure_binaries(release: str = "") -> Path:
    """The folder of a release's binaries, the selected one's by default, built when it isn't there.

    That takes minutes the first time. A release other than the default links to the default's containerd and etcd.
    """
    release = release or selected_release()
    folder = folder_of(release)
    if folder.exists():
        return folder
    building = folder.with_name(f"{folder.name}.building-{os.getpid()}")
    building.mkdir(parents=True)
    try:
        if release == default_release():
            for tool in PACKAGES:
                _say(f"building {tool} from Go modules (minutes the first time) ...")
                _build(tool, release, building)
            source = building / "pause.c"
            source.write_text(PAUSE_C)
            subprocess.run(["gcc", "-Os", "-static", "-s", "-o", building / "pause", source], check=True)
        else:
            own = {package.rpartition("/")[2] for package in PACKAGES["kubernetes"]}
            for path in ensure_binaries(default_release()).iterdir():
                if path.name not in own:
                    (building / path.name).hardlink_to(path)
            _say(f"building kubernetes {release} from Go modules (minutes the first time) ...")
            _build("kubernetes", release, building)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
