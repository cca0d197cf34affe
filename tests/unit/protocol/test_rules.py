"""The protocol's model and the code name the same rules, and the model says rightly where each is kept."""

import importlib
import re
from pathlib import Path

import pytest

from tests.model import cases

ROOT = Path(__file__).parents[3]
PROTOCOL = ROOT / "docs" / "protocol"
MODEL = (PROTOCOL / "gpuclaim.pml").read_text()
SWITCHES = set(re.findall(r"^#ifndef (\w+)$", MODEL, re.MULTILINE))
RULES = {switch for switch in SWITCHES if switch.startswith("R_")}
_RULE = re.compile(r"\bR_[A-Z]+[0-9]?\b")


def _named_in(*files: Path) -> set[str]:
    return {rule for file in files for rule in _RULE.findall(file.read_text())}


def test_the_code_names_the_models_rules_and_no_others() -> None:
    assert _named_in(*(ROOT / "kubeletplugin").rglob("*.py")) == RULES


def test_the_readme_explains_them() -> None:
    assert _named_in(PROTOCOL / "README.md") == RULES


def test_each_rule_is_taken_away_once() -> None:
    assert {case.name for case in cases.BROKEN} == RULES
    assert all(case.switches[case.name] == 0 and case.story for case in cases.BROKEN)


def test_the_cases_use_switches_that_the_model_has() -> None:
    used = {switch for case in (*cases.BROKEN, *cases.SMALL, *cases.LARGE) for switch in case.switches}
    assert used <= SWITCHES


_KEPT = re.findall(r"#define (R_\w+) 1 +/\* (.*?) \*/", MODEL)


@pytest.mark.parametrize(("rule", "places"), _KEPT)
def test_what_keeps_a_rule_is_there(rule: str, places: str) -> None:
    """Modules, classes and functions, by their whole path below kubeletplugin."""
    paths = re.findall(r"\b[a-z]+\.[\w.]+", places)
    assert paths
    for path in paths:
        _resolve(f"kubeletplugin.{path}")


def _resolve(path: str) -> object:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        parent, _, name = path.rpartition(".")
        return getattr(_resolve(parent), name)


def test_all_rules_say_what_keeps_them() -> None:
    assert {rule for rule, _ in _KEPT} == RULES
