"""The fake API server answers whole conversations as a real one did (see flows.py)."""

import json
from typing import Any

import pytest

from kubeapi.rest import RestKubeApi
from tests.contract.kubeapi.flows import ANSWERS, FLOWS, play

pytestmark = pytest.mark.anyio

RECORDED: dict[str, dict[str, Any]] = json.loads(ANSWERS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FLOWS)
async def test_same_conversation(name: str, api: RestKubeApi) -> None:
    assert await play(api, name) == RECORDED[name]
