"""Pure mathematics: what is modelled and what is minimised. Imports no compiler, no estimator framework, no dataframe."""
