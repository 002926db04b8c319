import numpy as np
import pytest

import dyads
from dyads.datasets.synthetic import make_relations, make_store


@pytest.fixture(scope="session")
def store():
    """Labelled pairs of a made-up store, to learn from and to test on."""
    return make_store(40, 30, random_state=0).split(0.6)


def ordinal():
    X, rng = {"user": np.repeat(np.arange(20), 15), "film": np.tile(np.arange(15) + 100, 20)}, np.random.default_rng(0)
    kept = rng.random(300) < 0.7
    y = 1 + (X["user"] + X["film"] + rng.integers(0, 2, 300)) % 5
    return dyads.LFLOrdinal(rank=2, solver="point", random_state=0).fit(
        {name: ids[kept] for name, ids in X.items()}, y[kept]
    )


def links():
    row, col = np.triu_indices(20, 1)
    y = ((row < 10) == (col < 10)) ^ (np.random.default_rng(0).random(len(row)) < 0.1)
    return dyads.LFLLink(rank=2, n_models=1, random_state=0).fit({"a": row, "b": col}, y)


def relational():
    return dyads.LFLRelational(rank=2, solver="point", random_state=0).fit(*make_relations(10))


def with_pair_features():
    X, rng = {"user": np.tile(np.arange(10), 20), "item": np.repeat(np.arange(20), 10)}, np.random.default_rng(0)
    X["day"] = rng.choice(["mo", "tu"], 200)
    return dyads.LFLClassifier(rank=1, l2=1.0, solver="point").fit(X, rng.choice(["no", "yes"], 200))


@pytest.fixture(scope="session")
def models(store, tmp_path_factory):
    """Fitted models of all kinds and their files, by name."""
    train, _ = store
    fitted = {
        "point": dyads.LFLClassifier(rank=2, l2=1.0, solver="point", random_state=0).fit(train.X, train.y),
        "posterior": dyads.LFLClassifier(rank=2, solver=dyads.Gibbs(sweeps=40), random_state=0).fit(train.X, train.y),
        "ordinal": ordinal(),
        "links": links(),
        "relational": relational(),
        "pair features": with_pair_features(),
    }
    folder = tmp_path_factory.mktemp("models")
    for name, model in fitted.items():
        model.save(folder / f"{name}.dyads")
    return {name: (model, folder / f"{name}.dyads") for name, model in fitted.items()}
