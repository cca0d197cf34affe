"""RestKubeApi's verbs over real HTTP."""

import asyncio

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, KubeApi
from kubeapi.errors import AlreadyExists, Conflict, Gone, Invalid, NotFound
from kubeapi.rest import RestKubeApi
from tests.contract.kubeapi.objects import a_claim, a_device, a_slice

pytestmark = pytest.mark.anyio


def _is_a_kube_api(api: RestKubeApi) -> KubeApi:
    """Fails type checking when the client doesn't fulfil the contract."""
    return api


async def test_create_returns_what_the_server_stored(api: RestKubeApi) -> None:
    created = await api.create(RESOURCE_SLICES, a_slice("s1"))
    assert created["kind"] == "ResourceSlice"
    assert created["metadata"]["uid"]
    assert await api.get(RESOURCE_SLICES, "s1") == created
    with pytest.raises(AlreadyExists) as raised:
        await api.create(RESOURCE_SLICES, a_slice("s1"))
    assert str(raised.value) == 'resourceslices.resource.k8s.io "s1" already exists (409 AlreadyExists)'


async def test_fields_that_nobody_here_knows_survive(api: RestKubeApi, server: FakeApiServer) -> None:
    server.put(NODES, {"metadata": {"name": "n1"}, "spec": {"fromTheFuture": {"deep": [1, None, "ü"]}}})
    assert (await api.get(NODES, "n1"))["spec"] == {"fromTheFuture": {"deep": [1, None, "ü"]}}


async def test_generated_names_keep_58_bytes_of_their_prefix(api: RestKubeApi) -> None:
    prefix = "00000-gpu.nvidia.com-" + "n" * 60
    name = (await api.create(RESOURCE_SLICES, a_slice(generate=prefix)))["metadata"]["name"]
    assert len(name) == 63
    assert name[:58] == prefix[:58]


async def test_a_dry_run_answers_and_stores_nothing(api: RestKubeApi, server: FakeApiServer) -> None:
    assert (await api.create(RESOURCE_SLICES, a_slice("s1"), dry_run=True))["metadata"]["name"] == "s1"
    assert server.objects(RESOURCE_SLICES) == []
    created = await api.create(RESOURCE_SLICES, a_slice("s1"))
    changed = {**created, "spec": {**created["spec"], "devices": []}}
    assert "devices" not in (await api.replace(RESOURCE_SLICES, "s1", changed, dry_run=True))["spec"]
    assert server.object(RESOURCE_SLICES, "s1") == created


async def test_replace_needs_the_latest_version(api: RestKubeApi) -> None:
    first = await api.create(RESOURCE_SLICES, a_slice("s1"))
    second = await api.replace(
        RESOURCE_SLICES, "s1", {**first, "spec": {**first["spec"], "devices": [a_device("gpu-9")]}}
    )
    assert second["metadata"]["generation"] == 2
    with pytest.raises(Conflict, match="the object has been modified"):
        await api.replace(RESOURCE_SLICES, "s1", first)
    with pytest.raises(ValueError, match=r"without metadata\.resourceVersion"):
        await api.replace(RESOURCE_SLICES, "s1", a_slice("s1"))


async def test_replacing_with_the_same_writes_nothing(api: RestKubeApi) -> None:
    first = await api.create(RESOURCE_SLICES, a_slice("s1"))
    assert await api.replace(RESOURCE_SLICES, "s1", first) == first


async def test_delete_heeds_its_preconditions(api: RestKubeApi) -> None:
    created = await api.create(RESOURCE_SLICES, a_slice("s1"))
    uid, version = created["metadata"]["uid"], created["metadata"]["resourceVersion"]
    with pytest.raises(Conflict, match="the UID in the precondition"):
        await api.delete(RESOURCE_SLICES, "s1", uid="other")
    with pytest.raises(Conflict, match="the ResourceVersion in the precondition"):
        await api.delete(RESOURCE_SLICES, "s1", uid=uid, resource_version="0")
    await api.delete(RESOURCE_SLICES, "s1", uid=uid, resource_version=version)
    with pytest.raises(NotFound, match='"s1" not found'):
        await api.delete(RESOURCE_SLICES, "s1")


async def test_lists_are_selected_typed_and_in_scope(api: RestKubeApi, server: FakeApiServer) -> None:
    await api.create(RESOURCE_SLICES, a_slice("a", node="n1"))
    await api.create(RESOURCE_SLICES, a_slice("b", node="n2"))
    page = await api.list(RESOURCE_SLICES, field_selector="spec.driver=gpu.nvidia.com,spec.nodeName=n2")
    assert [(i["kind"], i["apiVersion"], i["metadata"]["name"]) for i in page.items] == [
        ("ResourceSlice", "resource.k8s.io/v1", "b")
    ]
    assert page.items[0] == await api.get(RESOURCE_SLICES, "b")
    for name, namespace in (("c1", "x"), ("c2", "y")):
        server.put(RESOURCE_CLAIMS, a_claim(name, namespace=namespace))
    everywhere = await api.list(RESOURCE_CLAIMS)
    here = await api.list(RESOURCE_CLAIMS, namespace="y")
    assert [i["metadata"]["name"] for i in everywhere.items] == ["c1", "c2"]
    assert [i["metadata"]["name"] for i in here.items] == ["c2"]


async def test_label_selectors(api: RestKubeApi, server: FakeApiServer) -> None:
    for name, labels in (("a", {"pool": "x"}), ("b", {"pool": "y", "gpu": "true"}), ("c", {})):
        server.put(NODES, {"metadata": {"name": name, "labels": labels}})
    for selector, names in {
        "pool=x": ["a"],
        "pool!=x": ["b", "c"],
        "pool in (x, y)": ["a", "b"],
        "pool notin (x),gpu": ["b"],
        "!gpu": ["a", "c"],
    }.items():
        page = await api.list(NODES, label_selector=selector)
        assert [i["metadata"]["name"] for i in page.items] == names, selector


async def test_pages_show_one_moment_until_it_is_forgotten(api: RestKubeApi, server: FakeApiServer) -> None:
    for name in "abc":
        await api.create(RESOURCE_SLICES, a_slice(name))
    first = await api.list(RESOURCE_SLICES, limit=2)
    await api.delete(RESOURCE_SLICES, "c")
    second = await api.list(RESOURCE_SLICES, limit=2, continue_token=first.continue_token)
    assert [i["metadata"]["name"] for i in (*first.items, *second.items)] == ["a", "b", "c"]
    assert second.resource_version == first.resource_version
    assert second.continue_token == ""
    server.compact()
    with pytest.raises(Gone, match="continue parameter is too old"):
        await api.list(RESOURCE_SLICES, limit=2, continue_token=first.continue_token)


async def test_apply_owns_what_it_applied_and_nothing_else(api: RestKubeApi, server: FakeApiServer) -> None:
    config = {
        "metadata": {"labels": {"a": "1", "b": "2"}},
        "spec": {"selectors": [{"cel": {"expression": "true"}}]},
    }
    created = await api.apply(DEVICE_CLASSES, "gpu", config, field_manager="us")
    assert created["metadata"]["name"] == "gpu"
    await api.merge_patch(DEVICE_CLASSES, "gpu", {"metadata": {"labels": {"theirs": "x"}}})
    again = await api.apply(
        DEVICE_CLASSES, "gpu", {"metadata": {"labels": {"a": "1"}}, "spec": config["spec"]}, field_manager="us"
    )
    assert again["metadata"]["labels"] == {"a": "1", "theirs": "x"}
    with pytest.raises(Conflict, match=r'conflict with "us": \.metadata\.labels\.a'):
        await api.apply(DEVICE_CLASSES, "gpu", {"metadata": {"labels": {"a": "9"}}}, field_manager="them", force=False)
    forced = await api.apply(DEVICE_CLASSES, "gpu", {"metadata": {"labels": {"a": "9"}}}, field_manager="them")
    assert forced["metadata"]["labels"]["a"] == "9"
    server.remove(DEVICE_CLASSES, "gpu")
    with pytest.raises(NotFound):
        await api.get(DEVICE_CLASSES, "gpu")


async def test_status_devices_are_merged_by_their_keys(api: RestKubeApi, server: FakeApiServer) -> None:
    uid = server.put(RESOURCE_CLAIMS, a_claim("c", devices=("gpu-0", "gpu-1")))["metadata"]["uid"]

    def entry(device: str, driver: str = "gpu.nvidia.com") -> dict[str, object]:
        return {"driver": driver, "pool": "n1", "device": device, "data": {"x": 1}}

    for manager, device in (("us", "gpu-0"), ("them", "gpu-1")):
        body = {"metadata": {"uid": uid}, "status": {"devices": [entry(device)]}}
        await api.apply(RESOURCE_CLAIMS, "c", body, namespace="default", field_manager=manager, subresource="status")
    both = (await api.get(RESOURCE_CLAIMS, "c", namespace="default"))["status"]
    assert [d["device"] for d in both["devices"]] == ["gpu-0", "gpu-1"]
    assert "allocation" in both
    ours_gone = await api.apply(
        RESOURCE_CLAIMS, "c", {"status": {}}, namespace="default", field_manager="us", subresource="status"
    )
    assert [d["device"] for d in ours_gone["status"]["devices"]] == ["gpu-1"]
    with pytest.raises(Invalid, match="must be an allocated device in the claim"):
        body = {"status": {"devices": [entry("gpu-7")]}}
        await api.apply(RESOURCE_CLAIMS, "c", body, namespace="default", field_manager="us", subresource="status")
    with pytest.raises(Invalid, match="field is immutable"):
        await api.merge_patch(
            RESOURCE_CLAIMS, "c", {"metadata": {"uid": "other"}}, namespace="default", subresource="status"
        )


async def test_status_devices_go_with_their_allocation(api: RestKubeApi, server: FakeApiServer) -> None:
    server.put(RESOURCE_CLAIMS, a_claim("c", devices=("gpu-0", "gpu-1")))
    for manager, device in (("us", "gpu-0"), ("them", "gpu-1")):
        body = {"status": {"devices": [{"driver": "gpu.nvidia.com", "pool": "n1", "device": device}]}}
        await api.apply(RESOURCE_CLAIMS, "c", body, namespace="default", field_manager=manager, subresource="status")
    status = (await api.get(RESOURCE_CLAIMS, "c", namespace="default"))["status"]
    fewer = {"devices": {"results": status["allocation"]["devices"]["results"][1:]}}
    moved = await api.merge_patch(
        RESOURCE_CLAIMS, "c", {"status": {"allocation": fewer}}, namespace="default", subresource="status"
    )
    assert [d["device"] for d in moved["status"]["devices"]] == ["gpu-1"]
    freed = await api.merge_patch(
        RESOURCE_CLAIMS, "c", {"status": {"allocation": None}}, namespace="default", subresource="status"
    )
    assert "devices" not in freed.get("status", {})


async def test_merge_patch_removes_with_null(api: RestKubeApi, server: FakeApiServer) -> None:
    server.put(NODES, {"metadata": {"name": "n1", "labels": {"a": "1", "b": "2"}}})
    patched = await api.merge_patch(NODES, "n1", {"metadata": {"labels": {"a": None, "c": "3"}}})
    assert patched["metadata"]["labels"] == {"b": "2", "c": "3"}


async def test_namespaces_and_names_are_never_left_out_by_accident(api: RestKubeApi) -> None:
    with pytest.raises(ValueError, match="a namespace is needed"):
        await api.get(RESOURCE_CLAIMS, "c")
    with pytest.raises(ValueError, match="a name is needed"):
        await api.delete(RESOURCE_SLICES, "")


async def test_calls_run_side_by_side(api: RestKubeApi, server: FakeApiServer) -> None:
    server.put(NODES, {"metadata": {"name": "n1"}})
    fault = server.faults.hang(times=20, verb="get")
    calls = [asyncio.create_task(api.get(NODES, "n1")) for _ in range(20)]
    await server.until(lambda: fault.times == 0)
    server.faults.release()
    assert {body["metadata"]["name"] for body in await asyncio.gather(*calls)} == {"n1"}
