"""What a command answered."""

import json
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)

    def yaml(self) -> list[Any]:
        """Every document."""
        assert self.status == 0, self.err
        return list(yaml.safe_load_all(self.out))

    def refusal(self, status: int = 1) -> str:
        """The one line on stderr, without the command's name; nothing else was printed."""
        assert (self.status, self.out) == (status, "")
        (line,) = self.err.splitlines()
        assert line.startswith("gpuclaim: ")
        return line.removeprefix("gpuclaim: ")

    def usage(self) -> str:
        """The last line, after a hint where to find help."""
        assert (self.status, self.out) == (2, "")
        return self.err.splitlines()[-1]
