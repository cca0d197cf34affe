"""How the demo's story is printed: as wide as the terminal, plain characters, nothing that moves; fit for a pipe."""

import os
import textwrap
from collections.abc import Sequence

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kubeapi.client import Json

WIDEST = 110
"""Columns; longer lines are tiring to read. A pipe gets this many unless COLUMNS says otherwise."""

_INDENT = "    "


class Page:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        known = self._console.is_terminal or "COLUMNS" in os.environ
        self._console.width = max(min(self._console.width, WIDEST) if known else WIDEST, 40)
        self._chapters = 0

    def title(self, text: str) -> None:
        self._print(text, style="bold")

    def chapter(self, text: str) -> None:
        self._chapters += 1
        self._console.print()
        self._print(f"{self._chapters}. {text}", style="bold cyan")

    def say(self, text: str) -> None:
        self._print(text)

    def right(self, text: str) -> None:
        """A check that held."""
        self._print(f"  right: {text}", style="green")

    def quote(self, speaker: str, text: str) -> None:
        """An error in its own words."""
        self.say(speaker)
        self._print(text, style="yellow", indent=_INDENT)

    def document(self, name: str, text: str) -> None:
        self.say(name)
        for line in text.splitlines():
            self._print(line, style="dim", indent=_INDENT)

    def yaml(self, name: str, content: Json) -> None:
        self.document(name, yaml.safe_dump(content, sort_keys=False, width=10_000))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for number, column in enumerate(columns):
            table.add_column(Text(column if number else f"{_INDENT}{column}"), overflow="fold")
        for first, *others in rows:
            table.add_row(Text(f"{_INDENT}{first}"), *map(Text, others))
        self._console.print(table)

    def _print(self, text: str, style: str = "", indent: str = "") -> None:
        """Wrapped here, since rich's own wrapping forgets the indentation and fills lines up with blanks."""
        own = indent + " " * (len(text) - len(text.lstrip()))
        lines = textwrap.wrap(
            text,
            self._console.width,
            initial_indent=indent,
            subsequent_indent=f"{own}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            self._console.print(Text(line, style=style), soft_wrap=True)
