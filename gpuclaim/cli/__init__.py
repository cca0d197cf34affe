"""The `gpuclaim` command.

`gpuclaim kubeletplugin` is the node agent: it is dispatched before anything else is imported, so that typer and rich,
which only people need, cost it neither memory nor time.
"""

import os
import sys


def main() -> None:
    """Entry point; ends with the exit status of the command."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["kubeletplugin"]:
        from kubeletplugin.app.main import main as agent

        sys.exit(agent(arguments[1:]))
    from gpuclaim.cli.commands import app

    try:
        app(arguments, prog_name="gpuclaim")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(141)
    except OSError as error:
        sys.stderr.write(f"gpuclaim: {error}\n")
        os._exit(1)
