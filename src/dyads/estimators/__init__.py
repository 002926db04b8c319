"""The estimators: each names a choice of parts, and holds no numerics."""
