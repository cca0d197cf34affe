"""Which Kubernetes the real node is of, and that other releases cost the default one no new build."""

from pathlib import Path

import pytest

from tests.cluster.harness import binaries


def test_the_default_unless_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(binaries.SELECTED, raising=False)
    assert binaries.selected_release() == binaries.default_release()
    for release in binaries.releases():
        monkeypatch.setenv(binaries.SELECTED, release)
        assert binaries.selected_release() == release
    monkeypatch.setenv(binaries.SELECTED, "1.2.3")
    with pytest.raises(LookupError, match=f"there are .*{binaries.default_release()}"):
        binaries.selected_release()


def test_releases_are_in_order_and_each_has_a_folder_of_its_own() -> None:
    releases = binaries.releases()
    assert len(releases) > 2
    assert releases == sorted(releases, key=lambda release: tuple(map(int, release.split("."))))
    assert len({binaries.folder_of(release) for release in releases}) == len(releases)


def test_another_release_changes_nothing_for_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = binaries.folder_of(binaries.default_release())
    (tmp_path / "1.99.0").mkdir()
    (tmp_path / "1.99.0" / "go.mod").write_text("require k8s.io/kubernetes v1.99.0\n")
    monkeypatch.setattr(binaries, "RELEASES", tmp_path)
    assert binaries.releases()[-1] == "1.99.0"
    assert binaries.folder_of(binaries.default_release()) == before


@pytest.mark.parametrize("release", binaries.releases())
def test_its_modules_are_of_that_release(release: str) -> None:
    """Kubernetes names its own modules at v0.0.0: each needs its replacement."""
    default = release == binaries.default_release()
    folder = binaries.TOOLS / "kubernetes" if default else binaries.RELEASES / release
    text = (folder / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{release}" in text
    assert f"k8s.io/kubelet v0.{release.partition('.')[2]}" in text
