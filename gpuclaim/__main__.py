"""`python -m gpuclaim`, the same as the `gpuclaim` command."""

from gpuclaim.cli import main

main()
