"""The commands of people, thin: each asks another package and prints the answer."""

import asyncio
import importlib.metadata
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from deviceclasses.catalogue import device_classes
from gpuclaim.cli import output, views
from gpuclaim.cli.output import Format
from kubeapi.client import DEVICE_CLASSES, Json
from kubeapi.errors import ApiError, ConfigError, Forbidden, NotFound, Unauthorized, Unreachable
from kubeapi.rest import connect
from kubeletplugin.app import settings as agent_settings
from kubeletplugin.app.host.hardware import open_hardware
from kubeletplugin.app.host.look import look
from kubeletplugin.errors import AgentError, FatalError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.slices.render import render_slices

app = typer.Typer(
    help="Kubernetes pods get NVIDIA GPUs by claim.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # An error is one line then, in a terminal and in a log alike.
    rich_markup_mode=None,
)

FIELD_MANAGER = "gpuclaim"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gpuclaim {importlib.metadata.version('gpuclaim')}")
        raise typer.Exit


@app.callback()
def gpuclaim(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Kubernetes pods get NVIDIA GPUs by claim."""


Machine = Annotated[str, typer.Option(help="a simulated machine: a shipped name or a profile file")]
Mig = Annotated[list[str] | None, typer.Option(help="its static MIG layout: 0=1g.10gb,3g.40gb (repeatable), or a file")]
Exclude = Annotated[list[str] | None, typer.Option(help="GPU to leave out: UUID or PCI address, optionally =reason")]
HostRoot = Annotated[str, typer.Option(help="where the host's root file system is seen")]
Output = Annotated[Format, typer.Option("-o", "--output", help="form of the answer")]
Kubeconfig = Annotated[str, typer.Option(help="kubeconfig file")]


@app.command("kubeletplugin", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def kubeletplugin(context: typer.Context) -> None:
    """The node agent (see `gpuclaim kubeletplugin --help`)."""
    from kubeletplugin.app.main import main

    raise typer.Exit(main(context.args))


def _settings(**flags: Any) -> agent_settings.Settings:
    """As the agent would read them, from these flags, the environment and its config file."""
    words = [
        f"{agent_settings.flag_of(name)}={item}"
        for name, value in flags.items()
        for item in (value if isinstance(value, list) else [value] if value else [])
    ]
    try:
        effective, warnings = agent_settings.load(words, os.environ)
    except AgentError as error:
        output.fail(error, output.USAGE)
    for warning in warnings:
        output.warn(warning)
    return effective.settings


def _look(chosen: agent_settings.Settings) -> Inventory:
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as folder:
        try:
            hardware = open_hardware(chosen, Path(folder) / "machine.json")
        except AgentError as error:
            output.fail(error, output.USAGE)
        return output.run(look(chosen, hardware), AgentError)


@app.command(short_help="This node's devices, and withheld GPUs with the reason.")
def inventory(
    machine: Machine = "",
    mig: Mig = None,
    exclude: Exclude = None,
    host_root: HostRoot = "",
    form: Output = Format.TABLE,
) -> None:
    """This node's devices, and the GPUs that are withheld with the reason."""
    found = _look(_settings(machine=machine, mig=mig, exclude=exclude, host_root=host_root))
    if form is Format.TABLE:
        views.print_inventory(found)
    else:
        output.print_data(views.inventory_data(found), form)


@app.command(short_help="The ResourceSlices that would be published.")
def slices(
    machine: Machine = "",
    mig: Mig = None,
    exclude: Exclude = None,
    host_root: HostRoot = "",
    node_name: Annotated[str, typer.Option(help="name of the node")] = "",
    form: Output = Format.TABLE,
) -> None:
    """The ResourceSlices that would be published (`-o yaml` is fit for `kubectl create -f -`)."""
    chosen = _settings(machine=machine, mig=mig, exclude=exclude, host_root=host_root, node_name=node_name)
    found = _look(chosen)
    try:
        rendered = render_slices(found, chosen.node_name or os.uname().nodename.lower())
    except ValueError as error:
        output.fail(error, output.USAGE)
    for text in views.left_out(found, rendered.problems):
        output.warn(text)
    if form is Format.TABLE:
        views.print_slices(rendered.slices)
    else:
        output.print_objects(list(rendered.slices), form)


@app.command(short_help="On a node: who holds which device since when.")
def status(
    kubelet_root_dir: Annotated[str, typer.Option(help="the kubelet's --root-dir")] = "", form: Output = Format.TABLE
) -> None:
    """On a node: devices, who holds them since when, what drains and why."""
    from gpuclaim.cli.node_status import read_status

    chosen = _settings(kubelet_root_dir=kubelet_root_dir)
    found = output.run(read_status(chosen.plugin_dir), AgentError)
    if form is Format.TABLE:
        views.print_status(found)
    else:
        output.print_data(found, form)


@app.command(short_help="On a node: gives a draining device free.")
def release(
    device: Annotated[str, typer.Argument(help="name or UUID of the device")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="don't ask")] = False,
    kubelet_root_dir: Annotated[str, typer.Option(help="the kubelet's --root-dir")] = "",
    form: Output = Format.TABLE,
) -> None:
    """On a node: ends the drain of a device by your decision, after showing what is left there and what that means."""
    from gpuclaim.cli import node_release

    folder = _settings(kubelet_root_dir=kubelet_root_dir).plugin_dir
    if not yes and (form is not Format.TABLE or not output.can_ask()):
        output.fail("release without asking a person: give --yes", output.USAGE)
    try:
        drains = output.run(node_release.look(folder, device))
        if form is Format.TABLE:
            print(node_release.describe(drains))
        if not yes and not typer.confirm(f"Release {drains['device']}?"):
            output.fail(f"{drains['device']} stays as it is")
        released = output.run(node_release.release(folder, device, [drain["id"] for drain in drains["drains"]]))
    except node_release.UnknownDevice as error:
        output.fail(error, output.USAGE)
    except FatalError as error:
        output.fail(error)
    if form is Format.TABLE:
        print(f"released {released['device']}")
    else:
        output.print_data(released, form)


@app.command("apply-classes", short_help="Applies our DeviceClasses to the cluster.")
def apply_classes(
    kubeconfig: Kubeconfig = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the classes, change nothing")] = False,
) -> None:
    """Applies the DeviceClasses gpu.nvidia.com and mig.nvidia.com to the cluster."""
    classes = device_classes()
    if dry_run:
        output.print_objects(classes, Format.YAML)
        return
    output.run(_apply(kubeconfig, classes), FatalError, ConfigError)


async def _apply(kubeconfig: str, classes: list[Json]) -> None:
    """Says each that is applied at once, since a later one may fail."""
    async with await connect(kubeconfig or None) as api:
        for body in classes:
            name = body["metadata"]["name"]
            try:
                await api.apply(DEVICE_CLASSES, name, body, field_manager=FIELD_MANAGER)
            except ApiError as error:
                raise FatalError(f"apply DeviceClass {name}: {error}{_advice(error)}") from error
            print(f"deviceclass.resource.k8s.io/{name} applied")


def _advice(error: ApiError) -> str:
    match error:
        case Unreachable():
            return "; check the server's address in the kubeconfig, and the network"
        case Unauthorized():
            return "; get new credentials for this cluster (or see --kubeconfig)"
        case Forbidden():
            return "; it takes the verbs create and patch on deviceclasses.resource.k8s.io, as a cluster's admin has"
        case NotFound():
            return "; it takes Kubernetes 1.34 or newer with resource.k8s.io/v1 served"
        case _:
            return ""


@app.command()
def demo(machine: Annotated[str, typer.Option(help="the simulated machine")] = "dgx-h100", mig: Mig = None) -> None:
    """The claim route in a terminal: no cluster, no GPU, no root."""
    from gpuclaim.demo.story import run

    raise typer.Exit(asyncio.run(run(machine, mig or ())))
