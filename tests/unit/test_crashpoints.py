"""The list of crash points and the calls in the code say the same, and nothing of the product arms one."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kubeletplugin import crashpoints

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kubeletplugin", "kubeapi", "gpuclaim", "controller", "allocator", "deviceclasses")


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "pb" not in path.parts:
                yield path, ast.parse(path.read_text())


def mentions(tree: ast.Module) -> list[ast.Attribute]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "crashpoints"
    ]


def test_each_listed_point_is_reached_at_one_place_and_no_other_is() -> None:
    found: Counter[str] = Counter()
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.func in mentions(tree):
                assert [type(argument) for argument in node.args] == [ast.Constant], f"{path}: a point is a word"
                found[ast.literal_eval(node.args[0])] += 1
    assert found == Counter(crashpoints.POINTS.keys())


def test_the_product_only_ever_reaches_points() -> None:
    for path, tree in trees():
        assert {node.attr for node in mentions(tree)} <= {"reached"}, f"{path} does more with crash points"
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "kubeletplugin.crashpoints", f"{path} takes a name out of the module"


def test_a_point_does_nothing_until_a_test_sets_the_hook() -> None:
    assert crashpoints.hook is None
    crashpoints.reached("prepare.read")
