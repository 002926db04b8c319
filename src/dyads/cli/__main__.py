"""``python -m dyads.cli`` is the command."""

from dyads.cli.app import main

main()
