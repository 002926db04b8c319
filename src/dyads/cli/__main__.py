"""Run the command as ``python -m dyads.cli``."""

from dyads.cli.app import main

main()
