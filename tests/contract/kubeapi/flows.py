"""Sequences of requests, and what a server answered, in a form that is the same from run to run.

``python -m tests.contract.kubeapi.flows URL TOKEN`` plays them on a real, empty server (it leaves nothing behind) and
records its answers; test_flows.py holds the fake server to them.
"""

import asyncio
import copy
import json
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from kubeapi.client import DEVICE_CLASSES, EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, WatchEvent
from kubeapi.credentials import Connection, FixedConnection, tls_context
from kubeapi.errors import ApiError
from kubeapi.rest import RestKubeApi
from tests.contract.kubeapi.corpus import GO_STRUCT, an_event
from tests.contract.kubeapi.objects import a_claim, a_device, a_slice

Json = dict[str, Any]
ANSWERS = Path(__file__).parents[2] / "data" / "kubeapi" / "flows-1.36.3.json"
_OTHER_UID = "00000000-0000-4000-8000-000000000000"


class Flow:
    """Plays requests on a server and keeps a transcript."""

    def __init__(self, api: RestKubeApi) -> None:
        self.api = api
        self.told: dict[str, Any] = {}
        self._secrets: dict[str, str] = {}

    async def ask(self, step: str, request: Awaitable[Any]) -> Json:
        """Notes the answer, or the error in its place (then {} is returned)."""
        assert step not in self.told
        try:
            answer = await request
        except ApiError as e:
            self.told[step] = f"{e.status} {e.reason}: {self._plain(e.message)}"
            return {}
        self.told[step] = self._shape(answer) if isinstance(answer, dict) else "ok"
        return cast("Json", answer or {})

    def note(self, step: str, value: Any) -> None:
        self.told[step] = value

    def _shape(self, body: Json) -> Json:
        """What doesn't differ from run to run; uids and versions are remembered, to be taken out of messages."""
        metadata = body.get("metadata") or {}
        for field in ("uid", "resourceVersion"):
            if field in metadata:
                self._secrets[str(metadata[field])] = f"<{field}>"
        kept = ("generation", "labels", "namespace", "finalizers")
        shape: Json = {
            "kind": body.get("kind"),
            "has": sorted(k for k in ("uid", "resourceVersion", "creationTimestamp") if metadata.get(k)),
            "name": metadata["name"][:-5] + "<random>" if "generateName" in metadata else metadata.get("name"),
            **{key: metadata[key] for key in kept if key in metadata},
        }
        return shape | {key: body[key] for key in ("spec", "status", "series", "note") if body.get(key)}

    def _plain(self, message: str) -> str:
        message = GO_STRUCT.sub("Invalid value: <object>: ", message)
        for secret, name in sorted(self._secrets.items(), key=lambda item: -len(item[0])):
            message = re.sub(rf"(?<![\w.-]){re.escape(secret)}(?![\w.-])", name, message)
        return message


def _version(body: Json) -> str:
    return str((body.get("metadata") or {}).get("resourceVersion", ""))


def _with(body: Json, **spec: Any) -> Json:
    changed = copy.deepcopy(body)
    changed["spec"].update(spec)
    return changed


async def slices(flow: Flow) -> None:
    api = flow.api
    long = "00000-gpu.nvidia.com-a-node-with-a-name-that-is-far-too-long-for-this-"
    generated = await flow.ask("generated name", api.create(RESOURCE_SLICES, a_slice(generate=long)))
    await flow.ask("delete it", api.delete(RESOURCE_SLICES, generated["metadata"]["name"]))
    await flow.ask("dry run", api.create(RESOURCE_SLICES, a_slice("s1"), dry_run=True))
    first = await flow.ask("create", api.create(RESOURCE_SLICES, a_slice("s1")))
    await flow.ask("create again", api.create(RESOURCE_SLICES, a_slice("s1")))
    stamped = a_slice("s2") | {"metadata": {"name": "s2", "resourceVersion": "1"}}
    await flow.ask("create with a version", api.create(RESOURCE_SLICES, stamped))
    await flow.ask("create another kind", api.create(RESOURCE_SLICES, a_slice("s2") | {"kind": "Node"}))
    same = await flow.ask("replace with the same", api.replace(RESOURCE_SLICES, "s1", first))
    flow.note("same version", _version(same) == _version(first))
    second = await flow.ask("replace", api.replace(RESOURCE_SLICES, "s1", _with(first, devices=[a_device("x")])))
    flow.note("newer version", int(_version(second)) > int(_version(first)))
    await flow.ask("replace an old version", api.replace(RESOURCE_SLICES, "s1", first))
    moved = _with(second, nodeName="n2", driver="other.com", pool={**second["spec"]["pool"], "name": "n2"})
    await flow.ask("move to another node", api.replace(RESOURCE_SLICES, "s1", moved))
    foreign = copy.deepcopy(second)
    foreign["metadata"]["uid"] = _OTHER_UID
    await flow.ask("replace another uid", api.replace(RESOURCE_SLICES, "s1", foreign))
    renamed = copy.deepcopy(second)
    renamed["metadata"]["name"] = "s9"
    await flow.ask("replace under another name", api.replace(RESOURCE_SLICES, "s1", renamed))
    await flow.ask("replace nothing", api.replace(RESOURCE_SLICES, "s9", renamed))
    labels = {"metadata": {"labels": {"a": "1"}}}
    patched = await flow.ask("merge patch", api.merge_patch(RESOURCE_SLICES, "s1", labels))
    again = await flow.ask("the same patch", api.merge_patch(RESOURCE_SLICES, "s1", labels))
    flow.note("patched version is the same", _version(again) == _version(patched))
    await flow.ask("delete another uid", api.delete(RESOURCE_SLICES, "s1", uid=_OTHER_UID))
    await flow.ask("delete another version", api.delete(RESOURCE_SLICES, "s1", resource_version=_version(first)))
    await flow.ask("delete", api.delete(RESOURCE_SLICES, "s1", uid=patched["metadata"]["uid"]))
    await flow.ask("delete again", api.delete(RESOURCE_SLICES, "s1"))
    await flow.ask("get", api.get(RESOURCE_SLICES, "s1"))


async def lists(flow: Flow) -> None:
    api = flow.api
    for name in "abc":
        await api.create(RESOURCE_SLICES, a_slice(name, node="n1" if name != "c" else "n2"))
    page = await api.list(RESOURCE_SLICES, limit=2)
    rest = await api.list(RESOURCE_SLICES, limit=2, continue_token=page.continue_token)
    flow.note("pages", [[i["metadata"]["name"] for i in p.items] for p in (page, rest)])
    flow.note("same moment", page.resource_version == rest.resource_version)
    for selector in ("spec.nodeName=n1", "spec.driver=gpu.nvidia.com,spec.nodeName!=n1", "metadata.name=c"):
        chosen = await api.list(RESOURCE_SLICES, field_selector=selector)
        flow.note(selector, [i["metadata"]["name"] for i in chosen.items])
    await flow.ask("bad field", api.list(RESOURCE_SLICES, field_selector="spec.pool.name=n1"))
    for name in "abc":
        await api.delete(RESOURCE_SLICES, name)


async def watches(flow: Flow) -> None:
    api = flow.api
    start = (await api.list(RESOURCE_SLICES)).resource_version
    created = await api.create(RESOURCE_SLICES, a_slice("w1"))
    other = await api.create(RESOURCE_SLICES, a_slice("w2", node="n2"))
    await api.replace(RESOURCE_SLICES, "w1", _with(created, devices=[]))
    await api.delete(RESOURCE_SLICES, "w1")
    await api.delete(RESOURCE_SLICES, "w2", uid=other["metadata"]["uid"])
    stream = api.watch(RESOURCE_SLICES, resource_version=start, field_selector="spec.nodeName=n1", timeout_seconds=5)
    events = []
    async with aclosing(cast("AsyncGenerator[WatchEvent, None]", stream)):
        async for event in stream:
            if event.type != "BOOKMARK":
                events.append(event)
            if event.type == "DELETED":
                break
    flow.note("events", [[e.type, e.object["kind"], e.object["metadata"]["name"]] for e in events])
    flow.note("versions rise", [_version(e.object) for e in events] == sorted(_version(e.object) for e in events))


async def classes(flow: Flow) -> None:
    api = flow.api

    def config(**labels: str) -> Json:
        return {"metadata": {"labels": labels}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}

    async def apply(step: str, body: Json, manager: str = "us", **options: Any) -> Json:
        return await flow.ask(step, api.apply(DEVICE_CLASSES, "c1", body, field_manager=manager, **options))

    await apply("apply without a name", {"metadata": {"name": ""}})
    await apply("apply dry", config(a="1"), dry_run=True)
    await apply("apply to another uid", {**config(), "metadata": {"uid": _OTHER_UID}})
    first = await apply("apply", config(a="1", b="2"))
    same = await apply("apply the same", config(a="1", b="2"))
    flow.note("same version", _version(same) == _version(first))
    await apply("apply less", config(a="1"))
    await apply("apply with another's field", config(a="9"), manager="them", force=False)
    await apply("force it", config(a="9"), manager="them")
    await apply("apply without it", config(), manager="us")
    await flow.ask("patch", api.merge_patch(DEVICE_CLASSES, "c1", {"metadata": {"labels": {"p": "1"}}}))
    await apply("others' fields stay", config(b="3"), manager="us")
    await flow.ask("delete", api.delete(DEVICE_CLASSES, "c1"))


async def claims(flow: Flow) -> None:
    api = flow.api
    here: dict[str, Any] = {"namespace": "default"}
    status: dict[str, Any] = {**here, "subresource": "status"}
    claim = a_claim("claim1", devices=("gpu-0", "gpu-1"))
    wanted = claim["status"]
    await flow.ask("create drops the status", api.create(RESOURCE_CLAIMS, claim, **here))
    await flow.ask("allocate", api.merge_patch(RESOURCE_CLAIMS, "claim1", {"status": wanted}, **status))
    elsewhere = {"status": None, "metadata": {"labels": {"a": "1"}}}
    await flow.ask("the object's own path leaves it", api.merge_patch(RESOURCE_CLAIMS, "claim1", elsewhere, **here))

    def device(name: str, **fields: Any) -> Json:
        return {"driver": "gpu.nvidia.com", "pool": "n1", "device": name, **fields}

    async def apply(step: str, devices: list[Json], manager: str = "us", **metadata: str) -> None:
        body = {"metadata": metadata, "status": {"devices": devices} if devices else {}}
        await flow.ask(step, api.apply(RESOURCE_CLAIMS, "claim1", body, field_manager=manager, **status))

    await apply("ours", [device("gpu-0", data={"index": 0})])
    await apply("theirs", [device("gpu-1")], manager="them")
    await apply("ours changes", [device("gpu-0", data={"minor": 1})])
    await apply("not allocated", [device("gpu-7")])
    await apply("another uid", [device("gpu-0")], uid=_OTHER_UID)
    await apply("ours goes", [])
    other_uid = {"metadata": {"uid": _OTHER_UID}, "status": {"devices": []}}
    await flow.ask("patch another uid", api.merge_patch(RESOURCE_CLAIMS, "claim1", other_uid, **status))
    await flow.ask("spec is fixed", api.merge_patch(RESOURCE_CLAIMS, "claim1", {"spec": {"devices": None}}, **here))
    await flow.ask("elsewhere", api.get(RESOURCE_CLAIMS, "claim1", namespace="kube-public"))
    await flow.ask("delete", api.delete(RESOURCE_CLAIMS, "claim1", **here))


async def events(flow: Flow) -> None:
    api = flow.api
    await flow.ask("create", api.create(EVENTS, an_event(), namespace="default"))
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}}
    await flow.ask("count", api.merge_patch(EVENTS, "e.1", series, namespace="default"))
    await flow.ask("note is fixed", api.merge_patch(EVENTS, "e.1", {"note": "new"}, namespace="default"))
    await flow.ask("delete", api.delete(EVENTS, "e.1", namespace="default"))
    await flow.ask("count what is gone", api.merge_patch(EVENTS, "e.1", series, namespace="default"))


async def finalizers(flow: Flow) -> None:
    api = flow.api
    waiting = {"metadata": {"name": "c9", "finalizers": ["example.com/wait"]}}
    await flow.ask("create", api.create(DEVICE_CLASSES, waiting))
    await flow.ask("delete waits", api.delete(DEVICE_CLASSES, "c9"))
    await flow.ask("still there", api.get(DEVICE_CLASSES, "c9"))
    await flow.ask("let go", api.merge_patch(DEVICE_CLASSES, "c9", {"metadata": {"finalizers": None}}))
    await flow.ask("gone", api.get(DEVICE_CLASSES, "c9"))


def _pod(name: str, node: str) -> Json:
    container = {"name": "c", "image": "localhost/c"}
    at_once = {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container], **at_once}}


async def pods(flow: Flow) -> None:
    """Of one node, and one annotation on them. A server without controllers needs a service account ``default``."""
    api = flow.api
    here: dict[str, Any] = {"namespace": "default"}
    start = (await api.list(PODS, field_selector="spec.nodeName=n1")).resource_version
    for name, node in (("p1", "n1"), ("p2", "n2"), ("p3", "n1")):
        await api.create(PODS, _pod(name, node), **here)
    chosen = await api.list(PODS, field_selector="spec.nodeName=n1", limit=1)
    flow.note("first page of the node's", [item["metadata"]["name"] for item in chosen.items])
    rest = await api.list(PODS, field_selector="spec.nodeName=n1", limit=1, continue_token=chosen.continue_token)
    flow.note("second page", [[item["metadata"]["name"] for item in rest.items], rest.continue_token])
    uid = chosen.items[0]["metadata"]["uid"]

    async def annotate(step: str, pod: str, value: str, uid: str, manager: str = "us") -> Json:
        body = {"metadata": {"uid": uid, "annotations": {"gpu.nvidia.com/wakes": value}}}
        try:
            answer = await api.apply(PODS, pod, body, field_manager=manager, **here)
        except ApiError as e:
            flow.note(step, f"{e.status} {e.reason}: {e.message.replace(uid, '<uid>')}")
            return {}
        flow.note(step, answer["metadata"]["annotations"])
        return answer

    first = await annotate("annotate", "p1", "1", uid)
    same = await annotate("annotate with the same", "p1", "1", uid)
    flow.note("same version", _version(same) == _version(first))
    second = await annotate("annotate anew", "p1", "2", uid)
    flow.note("newer version", int(_version(second)) > int(_version(first)))
    await annotate("others' stay", "p1", "3", uid, manager="them")
    await annotate("another uid", "p1", "4", _OTHER_UID)
    await annotate("none of the name", "p9", "1", _OTHER_UID)
    stream = api.watch(PODS, resource_version=start, field_selector="spec.nodeName=n1", timeout_seconds=5)
    events: list[list[str]] = []
    async with aclosing(cast("AsyncGenerator[WatchEvent, None]", stream)):
        async for event in stream:
            if event.type != "BOOKMARK":
                metadata = event.object["metadata"]
                wakes = metadata.get("annotations", {}).get("gpu.nvidia.com/wakes", "")
                events.append([event.type, metadata["name"], wakes])
            if events and events[-1][2] == "3":
                break
    flow.note("events", events)
    for name in ("p1", "p2", "p3"):
        await api.delete(PODS, name, **here)


FLOWS: dict[str, Callable[[Flow], Awaitable[None]]] = {
    flow.__name__: flow for flow in (slices, lists, watches, classes, claims, events, finalizers, pods)
}


async def play(api: RestKubeApi, name: str) -> dict[str, Any]:
    flow = Flow(api)
    await FLOWS[name](flow)
    return flow.told


async def _record(url: str, token: str) -> None:
    connection = Connection(url, f"Bearer {token}", tls_context(verify=False))
    async with RestKubeApi(FixedConnection(connection)) as api:
        transcripts = {name: await play(api, name) for name in FLOWS}
    text = json.dumps(transcripts, indent=1) + "\n"
    await asyncio.to_thread(ANSWERS.write_text, text, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(_record(*sys.argv[1:]))
