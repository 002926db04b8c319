"""The paper's co-author figure: the matrix of links, ordered by k-means on the latent weights.

    python examples/coauthors.py [NIPS234.txt] [picture.png]

The file holds the upper triangle, tab separated. Without it a graph of seven groups is made up.
"""

import sys

import numpy as np
from matplotlib.figure import Figure
from sklearn.cluster import KMeans

import dyads


def read(path):
    edges = np.loadtxt(path, dtype=int)[:, :2] - 1
    matrix = np.zeros((234, 234))
    matrix[edges[:, 0], edges[:, 1]] = matrix[edges[:, 1], edges[:, 0]] = 1
    return matrix


def make_up(n=120, groups=7, seed=0):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    links = np.triu(rng.random((n, n)) < np.where(group[:, None] == group, 0.5, 0.01), 1)
    return (links | links.T).astype(float)


def main(source=None, picture="coauthors.png"):
    matrix = make_up() if source is None else read(source)
    np.fill_diagonal(matrix, np.nan)
    pairs = dyads.pairs_from_graph(matrix, directed=False)
    model = dyads.LFLLink(rank=10, l2=1.0, random_state=0).fit(pairs.X, pairs.y)
    nodes = np.arange(len(matrix))
    order = np.argsort(KMeans(7, n_init=10, random_state=0).fit_predict(model.embed(nodes)), kind="stable")
    figure = Figure(figsize=(10, 5), layout="constrained")
    for ax, index, title in zip(figure.subplots(1, 2), (nodes, order), ("as given", "by clusters"), strict=True):
        ax.imshow(np.nan_to_num(matrix)[np.ix_(index, index)], cmap="binary", interpolation="nearest")
        ax.set(title=f"Links, ordered {title}", xlabel="node", ylabel="node")
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
