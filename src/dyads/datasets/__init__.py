"""Data sets: made up (`synthetic`), or published ones by family, found in `DYADS_DATA` or fetched (`sources`)."""
