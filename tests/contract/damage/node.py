"""A node whose agents are processes, what an operator reads of them, and file systems that fail as real ones do."""

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuclaim.demo.kubelet import PodClaim
from kubeapi.client import EVENTS
from tests.contract.agent.node import AgentNode, AgentProcess, until, until_true

_NUMBERS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Line:
    level: str
    text: str
    """The message, and the error where it is a field of its own."""
    traceback: bool


def lines(output: str) -> list[Line]:
    return [_line(json.loads(text)) for text in output.splitlines()]


def _line(entry: dict[str, Any]) -> Line:
    text = ": ".join(part for part in (entry["message"], entry.get("error", "")) if part)
    return Line(entry["level"], text, "exception" in entry)


def troubles(output: str) -> list[str]:
    return [line.text for line in lines(output) if line.level in ("warning", "error")]


def assert_told_well(output: str) -> None:
    """No traceback, and no trouble told twice, whatever numbers are in it."""
    assert not [line.text for line in lines(output) if line.traceback]
    told = Counter(_NUMBERS.sub("#", text) for text in troubles(output))
    assert not {text: count for text, count in told.items() if count > 1}


def assert_said_once(output: str, *parts: str) -> None:
    """One line says all of ``parts``, and nothing else in the log is told badly."""
    found = [line.text for line in lines(output) if all(part in line.text for part in parts)]
    assert len(found) == 1, "\n".join([f"{found!r} of", *(line.text for line in lines(output))])
    assert_told_well(output)


def fill(path: Path) -> None:
    """Until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


async def waiting(node: AgentNode) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = (await node.status())["waiting"]
    return entries


class DamagedNode(AgentNode):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._mounted: list[Path] = []

    @property
    def ledger(self) -> Path:
        return self.settings.plugin_dir / "ledger.db"

    async def agent(self, *words: str, name: str = "agent") -> AgentProcess:
        return await self.start_process(name, "--log-format=json", "--rescan-interval=0.5", *words)

    async def ready_agent(self, *words: str, name: str = "agent") -> AgentProcess:
        agent = await self.agent(*words, name=name)
        await self.ready()
        return agent

    async def held(self, name: str, device: str) -> PodClaim:
        """A claim that is prepared for its one pod, ``pod-of-<name>``."""
        claim = self.allocate(name, device, pod=f"pod-of-{name}")
        await self.prepare(f"pod-of-{name}", claim)
        return claim

    async def released(self, claim: PodClaim) -> None:
        await self.kubelet.unprepare(f"pod-of-{claim.name}", [claim])

    async def until_holder(self, device: str, *names: str) -> None:
        async def known() -> bool:
            return await self.holders(device) == list(names)

        await until(known)

    async def still_works(self, *held: tuple[PodClaim, str]) -> None:
        """What is held is held, another GPU can be claimed and given back, and what is held can be given back."""
        for claim, device in held:
            await self.until_holder(device, claim.name)
        await self.released(await self.held("another", "gpu-7"))
        for claim, device in held:
            await self.released(claim)
            assert await self.holders(device) == []

    async def until_event(self, reason: str) -> None:
        """Of the Node, where an operator without the agent's log looks."""

        def reasons() -> list[str]:
            return [event["reason"] for event in self.server.objects(EVENTS) if event["regarding"]["kind"] == "Node"]

        await until_true(lambda: reasons().count(reason) == 1)

    # --- file systems ---
    def mount(self, folder: Path, options: str) -> None:
        """A tmpfs of its own; the test is skipped where mounts aren't allowed."""
        folder.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
        self._mounted.append(folder)

    def bind_read_only(self, folder: Path) -> None:
        """As everybody sees it who opens something there from now on."""
        _mount("--bind", str(folder), str(folder))
        self._mounted.append(folder)
        _mount("-o", "remount,bind,ro", str(folder))

    def unmount(self) -> None:
        while self._mounted:
            subprocess.run(["umount", "-l", str(self._mounted.pop())], check=True)


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"can't mount file systems here: {done.stderr.strip()}")
