"""Find and load a machine profile, by the name of a shipped one or by file.

Errors are FatalError: a wrong machine can't heal, and each is one line that names what was wrong, where, and the
nearest valid choice. Loading takes a few milliseconds, since the agent's start includes it.
"""

import difflib
import functools
import json
from pathlib import Path

import yaml
from pydantic import ValidationError

from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.simulated.schema import MachineProfile

MACHINES = Path(__file__).parent.parent / "machines"


class MachineError(FatalError):
    """The machine can't be simulated: no such name, or its file is wrong."""


def machine_names() -> tuple[str, ...]:
    """The shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in MACHINES.glob("*.yaml")))


def nearest(word: str, choices: tuple[str, ...]) -> str:
    """`` (did you mean X?)`` for an error message, or nothing when no choice is near."""
    likeness = {choice: difflib.SequenceMatcher(None, word, choice).ratio() for choice in choices}
    best = max(choices, key=lambda choice: likeness[choice], default="")
    return f" (did you mean {best}?)" if best and likeness[best] >= 0.5 else ""


def load_profile(machine: str) -> MachineProfile:
    """The profile called ``machine``, or the one in the file of that path. Raises MachineError."""
    names = machine_names()
    if machine in names:
        return _load_file(MACHINES / f"{machine}.yaml")
    path = Path(machine)
    if path.is_file():
        return _load_file(path.resolve())
    if "/" in machine or path.suffix in (".yaml", ".yml", ".json"):
        raise MachineError(f"read machine profile {machine}: no such file; give a file or one of {', '.join(names)}")
    raise MachineError(
        f"find machine {machine!r}: no such profile{nearest(machine, names)}; give a file or one of {', '.join(names)}"
    )


@functools.lru_cache(maxsize=64)
def _load_file(path: Path) -> MachineProfile:
    try:
        # The fast loader: the pure Python one would cost the agent a good part of its start.
        document = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
        # By way of JSON, since strict validation takes a tuple from a JSON array but not from a Python list.
        profile = MachineProfile.model_validate_json(json.dumps(document))
    except (OSError, UnicodeDecodeError) as e:
        raise MachineError(f"read machine profile {path}: {e}") from e
    except yaml.YAMLError as e:
        raise MachineError(f"read machine profile {path}: {_yaml_problem(e)}") from e
    except (ValidationError, TypeError) as e:
        raise MachineError(f"read machine profile {path}: {problem(e)}") from e
    _check(path, profile)
    return profile


def _yaml_problem(e: yaml.YAMLError) -> str:
    if isinstance(e, yaml.MarkedYAMLError) and e.problem_mark is not None:
        return f"line {e.problem_mark.line + 1}, column {e.problem_mark.column + 1}: {e.problem or e.context}"
    return " ".join(str(e).split())


def problem(e: ValidationError | TypeError) -> str:
    """The first thing that a validation found, on one line, with the path to it."""
    if isinstance(e, TypeError):
        return str(e)
    errors = e.errors(include_url=False)
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"])
    rest = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = first["msg"]
    text = message[:1].lower() + message[1:]
    return f"{where}: {text}{rest}" if where else f"{text}{rest}"


def _check(path: Path, profile: MachineProfile) -> None:
    """What types can't say. Slots are addressed by position, so the indices must be it."""
    for position, gpu in enumerate(profile.gpus):
        where = f"read machine profile {path}: gpus.{position}"
        if gpu.index != position:
            raise MachineError(f"{where}.index: {gpu.index} is not its position in the list")
        if gpu.model not in profile.models:
            raise MachineError(f"{where}.model: no model {gpu.model!r}{nearest(gpu.model, tuple(profile.models))}")
