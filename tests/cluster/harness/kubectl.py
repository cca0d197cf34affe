"""kubectl as the tests use it: JSON in, JSON out, and waits that say what they waited for."""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tests.cluster.harness.processes import until

Json = dict[str, Any]


class KubectlError(RuntimeError):
    """What kubectl wrote to stderr."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """``command`` is kubectl with its prefix (network namespace) and kubeconfig."""

    command: tuple[str, ...]

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        done = subprocess.run(
            [*self.command, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def json(self, *arguments: str) -> Json:
        answer: Json = json.loads(self.run(*arguments, "-o", "json"))
        return answer

    def items(self, *arguments: str) -> list[Json]:
        items: list[Json] = self.json("get", *arguments)["items"]
        return items

    def get(self, *arguments: str) -> Json | None:
        """One object, None when there is none."""
        try:
            return self.json("get", *arguments)
        except KubectlError as error:
            if "NotFound" in str(error):
                return None
            raise

    def apply(self, *objects: Json, namespace: str = "") -> str:
        return self._write("apply", objects, namespace)

    def create(self, *objects: Json, namespace: str = "") -> str:
        return self._write("create", objects, namespace)

    def _write(self, verb: str, objects: Sequence[Json], namespace: str) -> str:
        where = ("-n", namespace) if namespace else ()
        return self.run(verb, *where, "-f", "-", stdin=yaml.safe_dump_all(objects))

    def wait(self, what: str, check: Callable[[], object], seconds: float = 30) -> None:
        until(what, seconds, check, 0.2)

    def phase(self, namespace: str, pod: str) -> str:
        found = self.get("pod", pod, "-n", namespace)
        return found["status"]["phase"] if found else "(gone)"

    def exec(self, namespace: str, pod: str, *command: str, container: str = "") -> str:
        which = ("-c", container) if container else ()
        return self.run("exec", "-n", namespace, pod, *which, "--", *command)

    def delete(self, namespace: str, *names: str, force: bool = False, wait: bool = True, seconds: float = 60) -> None:
        how = ("--force", "--grace-period=0") if force else ()
        self.run(
            "delete", "-n", namespace, *how, f"--wait={str(wait).lower()}", f"--timeout={seconds:g}s",
            "--ignore-not-found", *names, timeout=seconds + 10,
        )  # fmt: skip

    def events(self, namespace: str, name: str) -> list[str]:
        """``reason: message`` of the events about one object."""
        found = self.items("events", "-n", namespace, "--field-selector", f"involvedObject.name={name}")
        return [f"{event['reason']}: {event['message']}" for event in found]
