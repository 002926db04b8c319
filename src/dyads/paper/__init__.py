"""Experiments of the paper, the methods it compares with, and the demo. Fitting and predicting need none of it."""
