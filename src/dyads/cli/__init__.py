"""The command ``dyads``: parse arguments, call the library, print the results."""

from dyads.cli.app import main

__all__ = ["main"]
