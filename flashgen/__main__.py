"""`python -m flashgen` is the command `flashgen`."""

from flashgen.cli import main

main()
