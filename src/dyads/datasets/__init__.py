"""Data sets: synthetic, and published ones, which are read from the folder `DYADS_DATA` or downloaded (`sources`)."""
