"""`gpuclaim kubeletplugin`: what it prints, how it exits, and that it brings along nothing that only people need."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.app import logs, settings
from kubeletplugin.app import main as entry
from kubeletplugin.app.main import main
from kubeletplugin.errors import FatalError, RecoverableError


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})


@pytest.fixture(autouse=True)
def logging_untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, str]]]:
    configured: list[tuple[str, str, str]] = []
    monkeypatch.setattr(logs, "configure", lambda *given: configured.append(given))
    yield configured


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--node-name=a", "--help"]])
def test_help_names_every_flag(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    output = capsys.readouterr().out
    assert output.startswith("Usage: gpuclaim kubeletplugin [FLAGS]\n")
    flags = [settings.flag_of(name) for name in settings.Settings.model_fields]
    assert [flag for flag in (*flags, "--config", "--print-config") if f"  {flag}" not in output] == []
    assert {"  --log-level debug|info|warning|error", "  --log-format text|json"} <= set(output.splitlines())
    assert max(map(len, output.splitlines())) < 80


def test_print_config_starts_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"GPUCLAIM_LOG_LEVEL": "debug", "GPUCLAIM_LOG_LEVL": "info"})
    assert main(["--print-config", "--node-name=a"]) == 0
    output = capsys.readouterr()
    assert "nodeName: a  # --node-name" in output.out.splitlines()
    assert "logLevel: debug  # GPUCLAIM_LOG_LEVEL" in output.out.splitlines()
    assert output.err == (
        "gpuclaim kubeletplugin: ignore unknown variable GPUCLAIM_LOG_LEVL (did you mean GPUCLAIM_LOG_LEVEL?)\n"
    )


def test_a_bad_flag_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--node-nam=a"]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == (
        "",
        "gpuclaim kubeletplugin: unknown flag --node-nam (did you mean --node-name?)\n",
    )


@pytest.mark.parametrize("error", [FatalError("name the node"), RecoverableError("reach it")])
def test_what_ends_the_agent_is_one_line_and_status_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def end(*args: object) -> None:
        raise error

    monkeypatch.setattr(entry, "_run", end)
    assert main([]) == 1
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("ERROR", str(error))]
    assert caplog.records[0].exc_info is None


def test_a_stop_is_status_0_and_warnings_are_logged(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    logging_untouched: list[tuple[str, str, str]],
) -> None:
    monkeypatch.setattr("os.environ", {"GPUCLAIM_ZZZ": "1"})
    ran: list[settings.Settings] = []

    async def run(effective: settings.Effective, arguments: object) -> None:
        ran.append(effective.settings)

    monkeypatch.setattr(entry, "_run", run)
    assert main(["--log-format=json", "--node-name=node-a"]) == 0
    assert [chosen.node_name for chosen in ran] == ["node-a"]
    assert logging_untouched == [("info", "json", "node-a")]
    assert "ignore unknown variable GPUCLAIM_ZZZ" in caplog.text


UNWANTED = ("typer", "rich", "cel_expr_python", "kubernetes", "allocator", "controller", "gpuclaim", "click", "pytest")


def python(code: str) -> str:
    """What the code prints, in an interpreter of its own that is told nothing of this one's environment."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env={},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


IN_CLUSTER = """
    import asyncio, sys
    from pathlib import Path
    import kubeletplugin.app.agent, kubeletplugin.app.main
    from kubeapi.errors import ConfigError
    from kubeapi.rest import connect

    async def reach(folder):
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
        try:
            await connect(environ=environ, service_account_dir=folder)
        except ConfigError:
            pass

    asyncio.run(reach(Path("/not/there")))
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_agent_in_a_pod_imports_nothing_that_only_people_or_kubeconfigs_need() -> None:
    loaded = set(python(IN_CLUSTER).split())
    assert {"grpc", "aiohttp", "kubeletplugin", "kubeapi"} <= loaded
    assert loaded.isdisjoint(UNWANTED), loaded.intersection(UNWANTED)


def test_the_command_dispatches_to_the_agent_before_it_imports_what_people_need() -> None:
    code = """
        import sys
        sys.argv = ["gpuclaim", "kubeletplugin", "--print-config"]
        from gpuclaim.cli import main
        try:
            main()
        except SystemExit as end:
            assert end.code == 0
        print(*sorted({name.partition(".")[0] for name in sys.modules}))
    """
    loaded = set(python(code).splitlines()[-1].split())
    assert loaded.isdisjoint(set(UNWANTED) - {"gpuclaim"}), loaded.intersection(UNWANTED)


def test_a_thread_that_hangs_does_not_outlive_the_orderly_end(tmp_path: Path) -> None:
    """The loop's own threads are waited for at its end, and by the interpreter again."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"""
    import asyncio, sys
    from kubeletplugin.app import main as entry

    async def run(effective, arguments):
        asyncio.get_running_loop().run_in_executor(None, open, {str(fifo)!r})

    entry._run, entry.THREADS_SECONDS = run, 0.01
    sys.exit(entry.main(["--node-name=a"]))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=20)
    assert ended.returncode == 0, ended.stderr
    assert "end without the threads that are still blocked" in ended.stderr
    assert "_worker" in ended.stderr
