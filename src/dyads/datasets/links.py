"""Links and relations: NIPS co-authors, Alyawarra kinship, Nations, wiki-Vote."""

import numpy as np

from dyads.datasets.sources import Dataset, Progress, find


def nips_coauthors(progress: Progress | None = None) -> Dataset:
    """NIPS co-authorship: each unordered pair of 234 authors -> 1 if they wrote a paper together, else 0."""
    n_authors = 234  # some have no link, so the file does not tell
    edges = np.loadtxt(find("nips234", progress) / "NIPS234.txt", dtype=np.int64, ndmin=2)[:, :2] - 1
    linked = np.zeros((n_authors, n_authors), np.int64)
    linked[tuple(edges.T)] = linked[tuple(edges.T[::-1])] = 1
    row, col = np.triu_indices(n_authors, 1)
    return Dataset({"author": row, "other": col}, linked[row, col])


def alyawarra(progress: Progress | None = None) -> Dataset:
    """Alyawarra kinship: person x person -> the one of 26 terms the first has for the second."""
    from scipy.io import loadmat

    row, col, term = np.nonzero(loadmat(find("alyawarra", progress) / "alyawarradata.mat")["Rs"])
    return Dataset({"person": row, "other": col}, term)


def nations(progress: Progress | None = None) -> Dataset:
    """Nations: country x country x relation -> 1 or 0; cells that are not known are left out."""
    from scipy.io import loadmat

    cells = loadmat(find("nations", progress) / "dnations.mat")["R"]
    known = ~np.isnan(cells)
    row, col, relation = np.nonzero(known)
    return Dataset({"country": row, "other": col, "relation": relation}, cells[known].astype(np.int64))


def wiki_vote(progress: Progress | None = None) -> Dataset:
    """wiki-Vote: the pairs (voter, candidate) of all votes, each with the label 1."""
    edges = np.loadtxt(find("wiki-vote", progress) / "wiki-Vote.txt", dtype=np.int64, comments="#")
    return Dataset({"voter": edges[:, 0], "candidate": edges[:, 1]}, np.ones(len(edges), np.int64))
