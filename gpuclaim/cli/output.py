"""What people's commands print: a table for eyes, JSON or YAML for programs; errors as one line on stderr."""

import asyncio
import json
import sys
from collections.abc import Coroutine, Iterable, Sequence
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

import yaml
from rich.console import Console
from rich.table import Table

T = TypeVar("T")

USAGE = 2
"""Exit status where what was asked for can't be, as for a flag that there isn't; 1 where it can't be done now."""

_ENDLESS = 10_000
"""Columns."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def print_objects(objects: Sequence[dict[str, Any]], form: Format) -> None:
    """Kubernetes objects: a YAML stream, or a JSON List, as kubectl takes them."""
    if form is Format.JSON:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2))
    else:
        print(yaml.safe_dump_all(objects, sort_keys=False), end="")


def print_data(data: Any, form: Format) -> None:
    if form is Format.JSON:
        print(json.dumps(data, indent=2))
    else:
        print(yaml.safe_dump(data, sort_keys=False), end="")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """As wide as the terminal; without one as wide as it needs, so that grep and less see whole lines. Cells are
    plain text, whatever brackets a reason has."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=title or None, title_justify="left")
    for column in columns:
        # An id that is cut is of no use to anybody.
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else _ENDLESS
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def can_ask() -> bool:
    """Whether a person is there to answer."""
    return sys.stdin.isatty()


def warn(message: object) -> None:
    print(f"gpuclaim: {message}", file=sys.stderr)


def fail(message: object, status: int = 1) -> NoReturn:
    warn(message)
    sys.exit(status)


def run(work: Coroutine[Any, Any, T], *expected: type[Exception]) -> T:
    """Runs a command's coroutine; an expected error is one line, not a traceback."""
    try:
        return asyncio.run(work)
    except expected as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)
