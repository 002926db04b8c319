"""Which relations are alike? The paper's open question ("is-colleague-of" with "is-friend-of"), on relations made up.

python examples/relations.py [picture.png]
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import dyads
from dyads.datasets.synthetic import make_relations


def main(picture="relations.png"):
    X, y = make_relations()
    model = dyads.LFLRelational(rank=3, l2=1.0, random_state=0).fit(X, y)
    names, likeness = model.relation_ids_, model.relation_similarity()
    figure = Figure(figsize=(6, 5), layout="constrained")
    ax = figure.subplots()
    image = ax.imshow(likeness, vmin=-1, vmax=1, cmap="PuOr")
    ax.set_xticks(np.arange(len(names)), names, rotation=30, ha="right")
    ax.set_yticks(np.arange(len(names)), names)
    for (i, j), value in np.ndenumerate(likeness):
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if abs(value) > 0.7 else "black")
    ax.set_title("Correlation of the relations' weights")
    figure.colorbar(image, ax=ax)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
