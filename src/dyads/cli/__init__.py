"""The command ``dyads``: parses arguments, calls the library, draws."""

from dyads.cli.app import main

__all__ = ["main"]
