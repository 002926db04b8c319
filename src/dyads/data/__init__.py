"""Tables in, integer dyads out: the only rooms that see ids, dataframes and files of dyads."""
