from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.unit.inventory.support import Machine, machine

MakeMachine = Callable[..., Machine]


@pytest.fixture
def make_machine(tmp_path: Path) -> MakeMachine:
    def make(name: str = "dgx-h100", *, mig: Sequence[str] = ()) -> Machine:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return machine(folder, name, mig)

    return make
