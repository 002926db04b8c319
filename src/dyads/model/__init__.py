"""Pure mathematics: the model and its objective. Imports neither numba, scikit-learn nor a dataframe library."""
