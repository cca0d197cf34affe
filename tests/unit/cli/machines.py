"""Every machine that is shipped, and static MIG layouts for each that can have one."""

from kubeletplugin.nvml.simulated import machine_names

STATIC_MIG = {
    "a30x2": "all=2g.12gb,1g.6gb,1g.6gb",
    "dgx-a100-80": "0=7g.80gb;1=3g.40gb,3g.40gb;2=1g.10gb,1g.10gb",
    "dgx-h100": "all=1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb",
    "hgx-b200": "0=1g.45gb,2g.45gb,3g.90gb;1=7g.180gb",
    "rtx-pro-6000x8": "0=4g.96gb;1=2g.48gb,1g.24gb,1g.24gb",
}

CASES = [(name, "") for name in machine_names()] + list(STATIC_MIG.items())
IDS = [f"{name} {mig}".strip() for name, mig in CASES]


def flags(machine: str, mig: str) -> list[str]:
    return ["--machine", machine, *(["--mig", mig] if mig else [])]
