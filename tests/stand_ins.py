"""Made-up data in the place of published ones, with the same columns and the ids that the guides speak of."""

import numpy as np

from dyads.datasets.sources import Dataset

FILMS = (
    "Star Wars (1977)", "Alien (1979)", "Fargo (1996)", "Pretty Woman (1990)", "Sleepless in Seattle (1993)",
)  # fmt: skip
COUNTRIES = ("USA", "USSR", "UK", "India", "Norway", "Brazil", "China", "Egypt", "Cuba", "Poland")
RELATIONS = ("treaties", *(f"relation {k}" for k in range(7)))


def stars(user, item, seed=0):
    """Labels 1 to 5 of pairs, from tastes of two kinds."""
    rng = np.random.default_rng(seed)
    taste, appeal = rng.normal(size=(user.max() + 1, 2)), rng.normal(size=(item.max() + 1, 2))
    score = 3 + (taste[user] * appeal[item]).sum(axis=1) + rng.normal(scale=0.5, size=len(user))
    return np.clip(np.rint(score), 1, 5).astype(np.int64)


def cells(n_users, n_items, share, seed=0):
    user, item = np.nonzero(np.random.default_rng(seed).random((n_users, n_items)) < share)
    return user + 1, item + 1


def divided(dataset, first):
    return tuple(
        Dataset({name: column[part] for name, column in dataset.X.items()}, dataset.y[part], names=dataset.names)
        for part in (first, ~first)
    )


def movielens_100k(split):
    user, item = cells(60, 40, 0.5)
    names = {"item": {k + 1: FILMS[k] if k < len(FILMS) else f"Film {k} (1990)" for k in range(40)}}
    ratings = Dataset({"user": user, "item": item}, stars(user, item), names=names)
    return divided(ratings, np.random.default_rng(1).random(len(user)) < 0.8)


def coat():
    user, item = cells(60, 40, 0.6)
    ratings = Dataset({"user": user, "item": item}, stars(user, item))
    return divided(ratings, np.random.default_rng(1).random(len(user)) < ratings.y / 6)


def un_votes():
    country, call = cells(len(COUNTRIES) - 1, 150, 1.1)
    kinds = np.array(["no", "abstain", "yes", "yes", "yes"])
    X = {"country": np.array(COUNTRIES)[country], "roll call": call}
    return Dataset(X, kinds[stars(country, call) - 1], time=15000.0 + call)


def nips_coauthors():
    author, other = np.triu_indices(60, 1)
    alike = author % 6 == other % 6
    return Dataset({"author": author, "other": other}, (alike | (author == other - 1)).astype(np.int64))


def nations():
    n, m = len(COUNTRIES), len(RELATIONS)
    country, other, relation = (each.ravel() for each in np.indices((n, n, m)))
    between = country != other
    country, other, relation = country[between], other[between], relation[between]
    weight = np.random.default_rng(2).normal(size=(m, 2))
    place = np.random.default_rng(3).normal(size=(n, 2))
    linked = (weight[relation] * place[country] * place[other]).sum(axis=1) > 0
    names = dict(enumerate(COUNTRIES))
    X = {"country": country, "other": other, "relation": relation}
    return Dataset(
        X, linked.astype(int), names={"country": names, "other": names, "relation": dict(enumerate(RELATIONS))}
    )
