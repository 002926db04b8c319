"""The experiments of the paper, its rivals and the demo: nothing of it is needed to fit or to predict."""
