"""The command in this process, with nothing of the caller's environment."""

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from gpuclaim.cli.commands import app
from tests.unit.cli.answer import Answer

Command = Callable[..., Answer]


@pytest.fixture
def gpuclaim(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """``gpuclaim("inventory", "--machine=l4x1")``; nothing it does may end in a traceback."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/not/there")
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str, env: dict[str, str] | None = None) -> Answer:
        result = CliRunner().invoke(app, words, prog_name="gpuclaim", env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    yield run
