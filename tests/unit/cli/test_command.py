"""The command as a whole: what it is asked wrongly, and what happens to its output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kubeletplugin.app import main as agent
from tests.unit.cli.conftest import Command

COMMANDS = ["kubeletplugin", "inventory", "slices", "status", "release", "apply-classes", "demo"]


def process(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuclaim", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env={"HOME": "/not/there", **(env or {})},
    )


def test_help_names_every_command_in_whole_sentences(gpuclaim: Command) -> None:
    lines = gpuclaim("--help").out.splitlines()
    shown = lines[lines.index("Commands:") + 1 :]
    assert [line.split()[0] for line in shown] == COMMANDS
    assert [line for line in shown if not line.endswith(".")] == []
    assert [line for line in shown if line.endswith("...")] == []


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_each_command_has_help(gpuclaim: Command, command: str) -> None:
    answer = gpuclaim(command, "--help")
    assert answer.status == 0
    assert answer.out.startswith(f"Usage: gpuclaim {command} ")


def test_without_a_command_it_shows_help(gpuclaim: Command) -> None:
    answer = gpuclaim()
    assert answer.status == 2
    assert "Commands:" in answer.out + answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inventoy"], "Error: No such command 'inventoy'. Did you mean 'inventory'?"),
        (["frobnicate"], "Error: No such command 'frobnicate'."),
        (["--frob"], "Error: No such option: --frob"),
        (["slices", "--nod-name=a"], "Error: No such option: --nod-name"),
        (["inventory", "--machine"], "Error: Option '--machine' requires an argument."),
        (["inventory", "dgx-h100"], "Error: Got unexpected extra argument"),
        (["inventory", "-o", "yam"], "Error: Invalid value for '-o' / '--output': "),
    ],
)
def test_wrong_usage_is_told_in_one_line_with_the_nearest_word(
    gpuclaim: Command, words: list[str], message: str
) -> None:
    line = gpuclaim(*words).usage()
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["inventory", "--machin=x"], "--machine"),
        (["slices", "--nod-name=a"], "--node-name"),
        (["status", "--kubelet-root=a"], "--kubelet-root-dir"),
        (["apply-classes", "--dryrun"], "--dry-run"),
        (["inventory", "-o", "yam"], "yaml"),
    ],
)
def test_the_nearest_word_is_named(gpuclaim: Command, words: list[str], near: str) -> None:
    assert near in gpuclaim(*words).usage()


def test_the_agent_gets_its_flags_as_they_are(gpuclaim: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def main(words: list[str]) -> int:
        given.append(list(words))
        return 3

    monkeypatch.setattr(agent, "main", main)
    assert gpuclaim("kubeletplugin", "--node-name=a", "--mig", "0=1g.10gb", "-o").status == 3
    assert given == [["--node-name=a", "--mig", "0=1g.10gb", "-o"]]


def test_the_agents_bad_flag_ends_the_process_with_status_2() -> None:
    answer = process("kubeletplugin", "--node-nam=a")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "gpuclaim kubeletplugin: unknown flag --node-nam (did you mean --node-name?)\n"


def test_the_agent_on_a_node_without_a_name_says_what_to_give() -> None:
    answer = process("kubeletplugin", "--log-format=json", "--kubelet-root-dir=/not/there")
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert '"message": "name the node: give --node-name (in a pod: spec.nodeName by the downward API)"' in line


def test_the_module_is_the_command() -> None:
    answer = process("inventory", "--machine=l4x1")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "NVIDIA L4" in answer.stdout


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gpuclaim", "slices", "--machine=dgx-h100", "-o", "yaml"]
    try:
        answer = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, cwd=Path(__file__).parents[3]
        )
    finally:
        os.close(writing)
    assert "Traceback" not in answer.stderr
    assert answer.returncode != 0
