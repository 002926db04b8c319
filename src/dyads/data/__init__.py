"""From tables to integer dyads: the only package that handles ids, dataframes and files of dyads."""
