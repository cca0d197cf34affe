"""The mock library, built once a session per set of symbols that a driver lacks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.nvml.real import RealNvml
from kubeletplugin.nvml.simulated.schema import MachineProfile
from tests.nvmlmock.build import SONAME, compile_objects, find_compiler, link
from tests.nvmlmock.mock import LibraryFor, MakeMock, NvmlMock, OpenReal


@pytest.fixture(scope="session")
def library_for(tmp_path_factory: pytest.TempPathFactory) -> LibraryFor:
    """A library without the given symbols; the same file for the same symbols."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no gcc on PATH: the mock libnvidia-ml.so.1 can't be built")
    objects = compile_objects(compiler, tmp_path_factory.mktemp("nvmlmock-objects"))
    built: dict[frozenset[str], Path] = {}

    def build(missing: frozenset[str]) -> Path:
        if missing not in built:
            built[missing] = tmp_path_factory.mktemp("nvmlmock") / SONAME
            link(compiler, objects, built[missing], missing)
        return built[missing]

    return build


@pytest.fixture
def make_mock(library_for: LibraryFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeMock]:
    """The mock as a machine; ``extra`` entries go into its file."""
    config = tmp_path / "nvmlmock.conf"
    monkeypatch.setenv("NVMLMOCK_CONFIG", str(config))
    made: list[NvmlMock] = []

    def make(profile: MachineProfile, extra: dict[str, str] | None = None) -> NvmlMock:
        mock = NvmlMock(library_for(frozenset(profile.driver.missing_symbols)), config)
        mock.be(profile, extra)
        made.append(mock)
        return mock

    yield make
    for mock in made:
        mock.clear_faults()


@pytest.fixture
def open_real_nvml() -> Iterator[OpenReal]:
    """The real implementation over the mock, initialised; shut down after the test."""
    opened: list[RealNvml] = []

    def open_nvml(mock: NvmlMock) -> RealNvml:
        nvml = RealNvml(lambda: mock.library)
        nvml.init()
        opened.append(nvml)
        return nvml

    yield open_nvml
    for nvml in opened:
        nvml.shutdown()
