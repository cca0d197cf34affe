"""`gpuclaim demo`: what is needed for the story, the story, and how it ended.

Every step is checked; the first that is wrong ends the story with one line and exit status 1, and what the agent wrote
is kept to look into.
"""

import asyncio
import importlib
import shutil
import sys
from collections.abc import Sequence

from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.simulated import load_profile

SECONDS = 60.0
"""A story that takes longer is stuck; usually it takes two."""


async def run(machine: str, mig: Sequence[str] = ()) -> int:
    """Exit status of the command. ``machine`` is a shipped name or a profile file, ``mig`` its static layout."""
    try:
        load_profile(machine)
        importlib.import_module("allocator.cel")
    except FatalError as error:
        return _fail(str(error))
    except ImportError as error:
        return _fail(f"the story chooses devices by CEL: {error}")
    return await _tell(machine, mig)


async def _tell(machine: str, mig: Sequence[str]) -> int:
    from gpuclaim.demo.chapters import Story
    from gpuclaim.demo.page import Page
    from gpuclaim.demo.stage import Stage, WrongError, temporary_folder

    try:
        folder = temporary_folder()
    except OSError as error:
        return _fail(f"make a temporary folder: {error.strerror}: {error.filename}")
    keep = False
    try:
        async with asyncio.timeout(SECONDS), Stage(folder, machine, mig) as stage:
            await stage.attend(Story(stage, Page()).tell())
    except FatalError as error:
        return _fail(str(error))
    except (WrongError, TimeoutError) as error:
        keep = True
        what = str(error) or f"the story isn't over after {SECONDS:g} s"
        return _fail(f"wrong: {what}; the agent's log and files are in {folder}")
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _fail(text: str) -> int:
    print(f"gpuclaim demo: {text}", file=sys.stderr)
    return 1
