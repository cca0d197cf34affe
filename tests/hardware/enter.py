"""The container where there is no runtime: run by `unshare --mount --pid --fork`, it does what config.json says.

``enter.py BUNDLE``: cgroup, mounts, device nodes, hooks, then the command in place of itself. No limits on what its
root may do: it stands for a container's file system, not for its fences.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
USUAL_NODES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}


def main(bundle: Path) -> None:
    config: dict[str, Any] = json.loads((bundle / "config.json").read_text())
    root = Path(config["root"]["path"])
    join(config["linux"]["cgroupsPath"])
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for mount in config["mounts"]:
        mount_in(root, mount)
    for name, minor in USUAL_NODES.items():
        node(root / "dev" / name, 1, minor)
    for device in config["linux"]["devices"]:
        node(root / device["path"].lstrip("/"), device["major"], device["minor"])
    for kind in ("prestart", "createRuntime", "createContainer"):
        for hook in config["hooks"].get(kind, ()):
            run_hook(hook, bundle)
    os.chroot(root)
    os.chdir(config["process"]["cwd"])
    environment = dict(entry.split("=", 1) for entry in config["process"]["env"])
    command = config["process"]["args"]
    os.execvpe(command[0], command, environment)


def join(cgroup: str) -> None:
    """In every hierarchy, by the pid that this process has outside: /proc is still the outer one's."""
    roots = [CGROUPS] if (CGROUPS / "cgroup.procs").exists() else [path for path in CGROUPS.iterdir() if path.is_dir()]
    for hierarchy in roots:
        folder = hierarchy / cgroup.lstrip("/")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # 0 is the writer itself, whatever pid namespace it is in.
            (folder / "cgroup.procs").write_text("0")
        except OSError as error:
            if hierarchy.name in ("pids", CGROUPS.name):
                sys.exit(f"join the cgroup {folder}: {error.strerror}")


def mount_in(root: Path, mount: dict[str, Any]) -> None:
    target = root / mount["destination"].lstrip("/")
    source, options = Path(mount["source"]), set(mount.get("options", ()))
    if mount["type"] != "bind":
        target.mkdir(parents=True, exist_ok=True)
        words = ["-o", ",".join(options)] if options else []
        subprocess.run(["mount", "-t", mount["type"], *words, mount["source"], target], check=True)
        return
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    subprocess.run(["mount", "--rbind" if "rbind" in options else "--bind", source, target], check=True)
    if "ro" in options:
        subprocess.run(["mount", "-o", "remount,bind,ro", target], check=True)


def node(path: Path, major: int, minor: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, 0o20666, os.makedev(major, minor))
    path.chmod(0o666)


def run_hook(hook: dict[str, Any], bundle: Path) -> None:
    state = {"ociVersion": "1.0.2", "id": bundle.name, "status": "creating", "pid": os.getpid(), "bundle": str(bundle)}
    environment = dict(entry.split("=", 1) for entry in hook.get("env", ()))
    subprocess.run(
        hook.get("args") or [hook["path"]],
        executable=hook["path"],
        input=json.dumps(state),
        env=environment,
        text=True,
        check=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
