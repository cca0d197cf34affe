"""GPUs are excluded and given back by the config file, without a restart."""

import os
from pathlib import Path

import pytest

from kubeletplugin.app import settings
from kubeletplugin.app.live_exclusions import LiveExclusions

GPU = "GPU-dd56c72b-9079-5745-b2bf-1f280432580f"


class ConfigFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.time = 0
        self.write("version: v1\n")

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self.time += 1
        os.utime(self.path, (self.time, self.time))

    def load(self) -> settings.Settings:
        return settings.load([f"--config={self.path}"], {})[0].settings

    def live(self) -> LiveExclusions:
        return LiveExclusions(self.load(), self.path, self.load)


@pytest.fixture
def config(tmp_path: Path) -> ConfigFile:
    return ConfigFile(tmp_path / "config.yaml")


def test_a_gpu_goes_and_comes_back(config: ConfigFile) -> None:
    live = config.live()
    assert live() == []
    config.write(f"version: v1\nexclude:\n- gpu: {GPU}\n  reason: bad fan\n")
    assert [(entry.gpu, entry.reason) for entry in live()] == [(GPU, "bad fan")]
    config.write("version: v1\n")
    assert live() == []


def test_a_file_that_became_bad_changes_nothing_and_is_said_once(
    config: ConfigFile, caplog: pytest.LogCaptureFixture
) -> None:
    config.write(f"version: v1\nexclude: [{GPU}]\n")
    live = config.live()
    config.write("version: v1\nexlude: []\n")
    assert [entry.gpu for entry in live()] == [GPU]
    assert [entry.gpu for entry in live()] == [GPU]
    assert len(caplog.records) == 1
    assert "did you mean exclude?" in caplog.text


def test_what_else_changed_waits_for_the_next_start(config: ConfigFile, caplog: pytest.LogCaptureFixture) -> None:
    live = config.live()
    config.write("version: v1\nnvmlTimeout: 7\n")
    live()
    assert "nvmlTimeout takes effect at the next start" in caplog.text


def test_without_a_file_the_flags_stay() -> None:
    def load() -> settings.Settings:
        return settings.load(["--exclude", GPU], {})[0].settings

    live = LiveExclusions(load(), None, load)
    assert [entry.gpu for entry in live()] == [GPU]
