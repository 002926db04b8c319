"""Pure mathematics: what is modelled and what is minimised. It imports no numba, scikit-learn or dataframe."""
