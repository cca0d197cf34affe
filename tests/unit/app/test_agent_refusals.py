"""What no waiting would mend ends the agent before it listens, connects or waits for anything."""

import logging
from typing import Any

import pytest

from kubeletplugin.app.agent import Agent
from kubeletplugin.app.settings import Settings
from kubeletplugin.errors import FatalError

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"node_name": ""}, "name the node"),
        ({"node_name": "X_Y"}, "DNS subdomains"),
        ({"node_name": "a", "machine": "nope"}, "nope"),
        ({"node_name": "a", "mig": ["0=1g.10gb"]}, "it needs --machine"),
    ],
)
async def test_settings_that_cant_work(settings: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(Settings(**settings, http_endpoint="127.0.0.1:0", kubeconfig="/not/there"))
    with caplog.at_level(logging.INFO), pytest.raises(FatalError, match=words):
        await agent.run()
    assert caplog.text == ""
