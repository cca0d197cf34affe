"""The API's rules: what is left out, and that only that is left out."""

from typing import Any

import pytest

from kubeapi.client import Json
from kubeletplugin.slices.pool import device_json
from kubeletplugin.slices.validate import check_devices, pool_name_problem
from tests.unit.slices.samples import gpu_device, plain, taint


def device(**more: Any) -> Json:
    body = device_json(gpu_device(0))
    body["attributes"] = body["attributes"] | more.pop("attributes", {})
    body["capacity"] = body["capacity"] | more.pop("capacity", {})
    return body | more


def test_a_good_device_is_untouched() -> None:
    body = device(taints=[taint()], attributes={"eccEnabled": {"bool": False}, "x.example.com/y": {"int": -1}})
    checked = check_devices([body])
    assert checked.devices == (body,)
    assert checked.problems == ()


@pytest.mark.parametrize(
    ("attributes", "dropped"),
    [
        ({"name": {"string": "x" * 65}}, "65 bytes of text, 64 are allowed"),
        ({"name": {"string": "ä" * 33}}, "66 bytes of text"),
        ({"rawVersion": {"version": "580.105.08"}}, "without leading zeros"),
        ({"rawVersion": {"version": "550.54.14.1"}}, "major.minor.patch"),
        ({"rawVersion": {"version": "1.0.0-" + "a" * 60}}, "66 bytes of text"),
        ({"number": {"int": 2**63}}, "no 64-bit integer"),
        ({"number": {"int": True}}, "exactly one value"),
        ({"number": {"int": "1"}}, "exactly one value"),
        ({"empty": {}}, "exactly one value"),
        ({"two": {"int": 1, "string": "1"}}, "exactly one value"),
        ({"list": {"strings": ["a"]}}, "exactly one value"),
        ({"with-dash": {"int": 1}}, "must be a C identifier"),
        ({"n" * 33: {"int": 1}}, "must be a C identifier of at most 32"),
        ({"1st": {"int": 1}}, "must be a C identifier"),
        ({"UPPER/x": {"int": 1}}, "must be a DNS subdomain"),
        ({"a/b/c": {"int": 1}}, "must be a DNS subdomain"),
        ({f"{'d' * 64}/x": {"int": 1}}, "at most 63"),
        ({"/x": {"int": 1}}, "must be a DNS subdomain"),
    ],
)
def test_a_bad_attribute_costs_only_itself(attributes: Json, dropped: str) -> None:
    (key,) = attributes
    checked = check_devices([device(attributes=attributes | {"good": {"int": 1}})])
    (problem,) = checked.problems
    assert (problem.device, problem.key) == ("gpu-0", f"attributes.{key}")
    assert dropped in str(problem)
    assert checked.devices == (device(attributes={"good": {"int": 1}}),)


def test_a_bad_capacity_costs_only_itself() -> None:
    checked = check_devices([device(capacity={"ofaEngines": {"value": "some"}})])
    assert checked.devices == (device(),)
    assert str(checked.problems[0]).startswith("leave out capacity.ofaEngines of device gpu-0: parse quantity 'some'")


@pytest.mark.parametrize(
    "bad",
    [
        device(attributes={"driverVersion": {"version": "580.105.08"}}),
        device(attributes={"type": {"string": "gpu", "int": 1}}),
        device(capacity={"memory": {"value": "80GB"}}),
    ],
)
def test_a_device_without_a_core_key_would_break_selectors_everywhere(bad: Json) -> None:
    checked = check_devices([bad, plain("gpu-1")])
    assert checked.devices == (plain("gpu-1"),)
    assert [problem.key == "" for problem in checked.problems] == [False, True]
    assert "is needed on every device of its type" in str(checked.problems[-1])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (plain("GPU-0"), "must be a DNS label"),
        (plain("gpu_0"), "must be a DNS label"),
        (plain("g" * 64), "must be a DNS label"),
        (plain(""), "must be a DNS label"),
        (plain("gpu-0-"), "must be a DNS label"),
        (plain("gpu-0", taints=[taint(value="no free text")]), "must be a label value"),
        (plain("gpu-0", taints=[taint(value="v" * 64)]), "must be a label value"),
        (plain("gpu-0", taints=[taint(effect="PreferNoSchedule")]), "must be one of None, NoSchedule, NoExecute"),
        (plain("gpu-0", taints=[{"key": "", "effect": "None"}]), "must be a label key"),
        (plain("gpu-0", taints=[{"key": "a b", "effect": "None"}]), "must be a label key"),
        (plain("gpu-0", taints=[{"key": "UP/x", "effect": "None"}]), "must be a label key"),
        (plain("gpu-0", taints=[taint()] * 17), "17 taints, 16 are allowed"),
    ],
)
def test_a_bad_device_costs_only_itself(bad: Json, reason: str) -> None:
    checked = check_devices([plain("gpu-8"), bad, plain("gpu-9")])
    assert checked.devices == (plain("gpu-8"), plain("gpu-9"))
    (problem,) = checked.problems
    assert reason in str(problem)


def test_of_two_devices_of_one_name_the_first_stays() -> None:
    checked = check_devices([device(), plain("gpu-0")])
    assert checked.devices == (device(),)
    assert str(checked.problems[0]) == "leave out device gpu-0: a device of this name is there already"


def test_the_last_attributes_give_way_to_the_limit() -> None:
    many = {f"k{index}": {"int": index} for index in range(30)}
    (checked,) = check_devices([device(attributes=many)]).devices
    assert len(checked["attributes"]) + len(checked["capacity"]) == 32
    assert checked["attributes"].keys() == device()["attributes"].keys() | {f"k{index}" for index in range(22)}


def test_a_device_that_is_over_the_limit_with_core_keys_and_capacities_is_left_out() -> None:
    checked = check_devices([device(capacity={f"c{index}": {"value": "1"} for index in range(30)})])
    assert checked.devices == ()
    assert "more than 32 attributes and capacities" in str(checked.problems[-1])


@pytest.mark.parametrize("name", ["node-1", "a.b.c", "rack-1/node-1", "n" * 253])
def test_pool_names(name: str) -> None:
    assert pool_name_problem(name) == ""


@pytest.mark.parametrize("name", ["", "Node", "node_1", "a//b", "/a", "n" * 254, "a.", "-a"])
def test_bad_pool_names(name: str) -> None:
    assert "must be DNS subdomains" in pool_name_problem(name)
