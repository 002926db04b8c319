"""A made-up shop with features of users and items, for tests of models that use them."""

import numpy as np
import pandas as pd

from dyads import Features, SideInformation


def shop(n=1500, n_users=40, n_items=30, seed=0):
    """Users with an age and a city, items with a price and tags; labels follow the features, and a little the ids."""
    rng = np.random.default_rng(seed)
    users = pd.DataFrame(
        {
            "user": [f"u{i}" for i in range(n_users)],
            "age": rng.integers(18, 80, n_users),
            "city": rng.choice(["Bern", "Oslo", "Rome"], n_users),
        }
    )
    items = pd.DataFrame(
        {
            "item": [f"i{i}" for i in range(n_items)],
            "price": rng.gamma(2.0, 10.0, n_items),
            "tags": [
                list(rng.choice(["new", "red", "big"], rng.integers(0, 3), replace=False)) for _ in range(n_items)
            ],
        }
    )
    X = pd.DataFrame({"user": rng.choice(users["user"], n), "item": rng.choice(items["item"], n)})
    young = X["user"].map(dict(zip(users["user"], users["age"] < 45, strict=True))).to_numpy()
    red = X["item"].map(dict(zip(items["item"], ["red" in t for t in items["tags"]], strict=True))).to_numpy()
    logits = np.column_stack([np.zeros(n), 1.5 * young + 1.0 * red, 2.0 * red - 1.0 * young])
    noise = rng.gumbel(size=(n, 3))
    return X, np.array(["no", "maybe", "yes"])[np.argmax(logits + noise, axis=1)], users, items


X, Y, USERS, ITEMS = shop()
WITH = {"features": SideInformation(row=Features(USERS), col=Features(ITEMS)), "random_state": 0}


def with_features(**changes):
    """The parameters of a model with the features of the shop, used otherwise."""
    return WITH | {"features": WITH["features"].replaced(changes)}
