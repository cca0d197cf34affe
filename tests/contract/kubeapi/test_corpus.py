"""The fake API server says what a real one said, case by case and word by word (see corpus.py)."""

import json
from typing import Any

import pytest

from kubeapi.rest import RestKubeApi
from tests.contract.kubeapi.corpus import ANSWERS, GO_STRUCT, answer, requests

pytestmark = pytest.mark.anyio

CASES = requests()
RECORDED: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))


def _comparable(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "message": GO_STRUCT.sub("Invalid value: {}: ", told.get("message", ""))}


def test_every_case_was_recorded() -> None:
    assert CASES.keys() == RECORDED.keys()
    assert sum("stored" in told for told in RECORDED.values()) > 30
    assert sum(told.get("status") == 422 for told in RECORDED.values()) > 60


@pytest.mark.parametrize("name", CASES)
async def test_same_answer(name: str, api: RestKubeApi) -> None:
    assert _comparable(await answer(api, *CASES[name])) == _comparable(RECORDED[name])
