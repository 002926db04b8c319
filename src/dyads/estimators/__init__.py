"""The estimators, with the interface of scikit-learn. Each is a choice of parts, without numerics of its own."""
