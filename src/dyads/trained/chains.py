"""Posterior draws, chain by chain, as ArviZ reads them."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from dyads.errors import InputError
from dyads.model.record import Record

Array = np.ndarray[Any, Any]


def inference_data(record: Record, n_draws: Sequence[int], log_likelihood: Array | None) -> Any:
    """Return the draws as an `arviz.InferenceData`, with the groups posterior and, if given, log_likelihood.

    ArviZ expects chains of one length: longer chains are cut at their beginning.

    `n_draws` : number of draws of each chain, in the order of the record. `log_likelihood` : (draws, dyads).
    """
    with warnings.catch_warnings():
        # ArviZ announces its next version on import.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import arviz
        except ImportError as error:
            message = "to_arviz needs ArviZ, which is not installed: run pip install 'dyads[posterior]'."
            raise InputError(message) from error
    n_draws = [n for n in n_draws if n > 0]
    if sum(n_draws) != len(record.draws):
        raise InputError(f"The model has {len(record.draws)} draws, but chains of {n_draws}: fit the model again.")
    ends, shortest = np.cumsum(n_draws), min(n_draws)
    places = np.stack([np.arange(end - shortest, end) for end in ends])
    parts = [model.layout.named(model.theta) for model in record.models]
    posterior = {name: np.stack([[parts[i][name] for i in chain] for chain in places]) for name in parts[0]}
    known, layout = record.known, record.models[0].layout
    ids = [known.rows.ids, known.cols.ids, known.relations]
    dims: dict[str, list[str]] = {}
    coords: dict[str, Any] = {}
    for shapes, vocabulary in zip(layout.shapes, ids, strict=True):
        if vocabulary is not None:
            dims |= {name: [vocabulary.name] for name in shapes}
            coords[vocabulary.name] = vocabulary.ids.to_pylist()
    likelihood = None if log_likelihood is None else {"label": log_likelihood[places]}
    return arviz.from_dict(posterior, log_likelihood=likelihood, coords=coords, dims=dims)
