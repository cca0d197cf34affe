"""The catalogue, what is exposed, and what the README says of it are the same."""

from pathlib import Path

import pytest

from kubeletplugin.app.metrics.families import FAMILIES, Family
from tests.unit.app.metrics.exposition import Exposition, problems
from tests.unit.app.metrics.test_node import Node, gpu, inventory

pytestmark = pytest.mark.anyio

README = Path(__file__).parents[4] / "README.md"
_PYTHONS_OWN = "process_"


@pytest.fixture
async def seen() -> Exposition:
    node = Node(inventory(gpu(0), gpu(1)))
    node.claim("train", ("gpu", gpu(0)))
    return await node.scrape()


def _name(family: Family) -> str:
    """As the parser names it."""
    return family.name.removesuffix("_total") if family.kind == "counter" else family.name


async def test_what_is_exposed_is_the_catalogue(seen: Exposition) -> None:
    exposed = {it.name: (it.type, it.documentation) for it in seen.families if not it.name.startswith(_PYTHONS_OWN)}
    assert exposed == {_name(family): (family.kind, family.help) for family in FAMILIES}
    labels = {_name(family): set(family.labels) for family in FAMILIES}
    for family in seen.families:
        for sample in family.samples:
            if family.name in labels:
                assert sample.labels.keys() - {"le"} == labels[family.name], sample.name


async def test_names_help_and_units_are_as_prometheus_wants_them(seen: Exposition) -> None:
    assert problems(seen.families) == []
    for family in FAMILIES:
        assert family.name.startswith(("gpuclaim_", "nvidia_dra_")), family.name
        assert (family.kind == "counter") == family.name.endswith("_total"), family.name
        assert family.help and not family.help.endswith("."), family.name
        assert bool(family.buckets) == (family.kind == "histogram"), family.name
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_the_readme_says_the_same() -> None:
    table = "\n".join(_row(family) for family in FAMILIES)
    assert table in README.read_text(), f"README.md, Metrics: put this table there\n\n{table}"


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"
