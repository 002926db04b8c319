"""The search for penalties: candidates are judged by their log-loss on held-out dyads."""

import hashlib
import itertools
import logging
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import joblib
import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds
from sklearn.base import clone

from dyads import metrics
from dyads.data.codes import Codes, numeric_values, read_labels
from dyads.data.dyads import Dyads, chunks
from dyads.data.observations import read_weight, refuse_labels_beside
from dyads.data.store import Pairs, discard
from dyads.data.tables import named_values, read_column, read_feature
from dyads.errors import (
    CheckpointError,
    InputError,
    NotConvergedWarning,
    UnknownIdWarning,
    VanishedWarning,
    WeightWarning,
)
from dyads.estimators.settings import l2_of, solver_of
from dyads.learn.checkpoint import SearchState
from dyads.learn.training import point_solver
from dyads.model.objective import L2
from dyads.model.structure import STRUCTURES, is_undirected
from dyads.solve import SGD

Array = np.ndarray[Any, Any]
logger = logging.getLogger("dyads")

SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""Default grid of `l2__latent`, as fractions of the strength at which all latent weights vanish: 1 is rank 0."""

SIDE_GRID = (3.0, 10.0, 30.0, 100.0, 300.0)
"""Default grid of `l2__side`, for models with features: about a factor of 3 apart, centred on the default 30."""

BIAS_GRID = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Default grid of `l2__bias`, for models without latent weights: factors of 2, centred on the default 2."""

SEARCHED_DYADS, FEWEST_DYADS = 100_000, 500
"""The penalty of a point estimate is chosen on at most so many dyads, of a block; fewer have the default penalty."""

BLOCK_STEPS = 1000
"""Sizes of such a block that are tried, from a 1000th of rows and of columns to all."""

HELD_OUT = 5
"""A fifth of these dyads is held out."""

FAST = SGD(max_iter=8)
"""Solver of the candidates for the penalty of a point estimate."""

FEW_SHARES = (*SHARES[:-1], 2**-0.5)
"""Candidates for `l2__latent` there: with little data the best is close to the strength at which all vanish."""

FEW_BIASES = (0.5, 1.0, 2.0, 4.0)
"""Candidates for the strength of biases there, without latent weights."""

STRONGER_BIASES = (4.0, 16.0)
"""How much stronger it may be with latent weights, which explain part of what biases did: for links, most of it."""

CLEARLY_WORSE = 2.0
"""A candidate is dropped after the first fold if its log-loss is above the best by this many standard errors."""

FINALISTS = 2
"""At most this many candidates, or a third of them, are judged on all folds: near the optimum, neighbours are alike."""

NEAR = 1e-3
"""Share of a log-loss that a weaker penalty must gain: a part of the data is judged, and with fewer epochs."""

UNSEEN_LABEL = 20.0
"""Log-loss, -log p, of a label that is missing from the training part of a fold: p = exp(-20) = 2e-9, not zero."""

RANK_ZERO_OF = {"stereotype": None, "mixture": "relational", "symmetric_mixture": "spectral"}
"""The structures that need a rank of at least 1, and those that equal them without latent weights."""

Data = tuple[Any, Any, Array | None]
"""The columns of a table by name, labels and weights; or a store, which holds its own, and twice None."""


def read_data(X: Any, y: Any, sample_weight: Any) -> Data:
    """Read what parts can be taken of."""
    table = {name: read_feature(values, f"column {name!r}") for name, values in named_values(X).items()}
    return table, read_column(y, "the column of labels", numbers_mix=True), read_weight(sample_weight)


def part_of(data: Data, positions: Array) -> Data:
    """The table, labels and weights of some lines."""
    table, labels, weight = data
    if isinstance(table, Pairs):
        return table.part(positions), None, None
    lines = {name: column.take(positions) for name, column in table.items()}
    return lines, labels.take(positions), None if weight is None else weight[positions]


def batches_of(X: Any, y: Any, sample_weight: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield dyads, their labels and their weights: those of a table at once, those of a store in batches."""
    if not isinstance(X, Pairs):
        if y is None:
            raise InputError("Got no labels: expected y, one label per dyad, or a store, which holds them.")
        yield X, y, sample_weight
        return
    refuse_labels_beside(y, sample_weight)
    for batch in X.batches():
        yield batch, batch.labels, batch.dyads.weight


def chosen_l2(estimator: Any, data: Data, dyads: Dyads) -> L2:
    """The penalty of a point estimate for which none is given: the one of least log-loss on held-out dyads.

    First it judges strengths for biases, without latent weights; then strengths for latent weights, with the best of
    these; then stronger ones for biases. It takes the strongest whose loss is near the least; rank 0, where all latent
    weights vanish, counts as the strongest. The search takes as long as one to six fits, or less if there are more
    than `SEARCHED_DYADS`.

    Of more than `SEARCHED_DYADS` it judges those of a block of random rows and random columns, the same share of both:
    with all dyads of a few rows, columns would have too few to tell what latent weights gain, and the other way round.
    As latent weights gain less on a block than on all dyads, there only the least loss speaks for rank 0 or stronger
    biases.

    `dyads` : those of the table, coded.
    """
    if len(dyads) < FEWEST_DYADS:
        return L2()
    rng = np.random.default_rng(0)
    # Every label is in the training part: without it, the model would be another.
    first = _first_of_each(dyads.label, dyads.n_labels)
    kind, one_set = STRUCTURES[estimator._structure]
    chosen = np.union1d(_block(dyads, one_set, rng), first)
    cells = np.stack([codes[chosen] for codes in dyads.codes])
    if is_undirected(kind, one_set):
        cells[:2] = np.sort(cells[:2], axis=0)
    _, cell = np.unique(cells, axis=1, return_inverse=True)
    held = (rng.permutation(cell.max() + 1) % HELD_OUT == 0)[cell] & ~np.isin(chosen, first)
    if not held.any():
        return L2()
    # Dyads of weight zero are lines of the table, but none of the dyads.
    line = chosen if data[2] is None else np.flatnonzero(data[2])[chosen]
    template = clone(estimator).set_params(
        l2=L2(), solver=FAST, early_stopping=None, n_init=1, n_models=1, warm_start=False,
        engine=estimator._engine.for_memory(),
    )  # fmt: skip
    with closing(Search(template, data, [(line[~held], line[held])])) as search:

        def suffices(candidate: Candidate, errors: float = 1) -> bool:
            """Whether a simpler candidate is about as good as the best; on a block, whether it is the best."""
            all_judged = len(chosen) == len(dyads)
            return search.is_near_best(candidate, errors) if all_judged else candidate is search.best

        plain = without_latent(template)
        search.judge([Path(plain, "l2__bias", FEW_BIASES, True) if template.bias else Path(plain, None, (), False)])
        strengths = {name: value for name, value in search.best.params.items() if name == "l2__bias"}
        if template.rank != 0:
            top = vanishing_l2(clone(template).set_params(**strengths), *search.part(0, 0))
            rank_zero, n_plain = search.best, len(search.candidates)
            search.judge([Path(strengths, "l2__latent", shares_of(top, FEW_SHARES), True)])
            if suffices(rank_zero):
                # The sum of n parts has at most n times the norm of one of them: this strength suffices for all dyads.
                strengths["l2__latent"] = top * len(dyads) / int((~held).sum())
            else:
                judged = search.candidates[n_plain:]
                near = [each.params["l2__latent"] for each in judged if search.is_near_best(each)]
                strengths["l2__latent"] = max(_lowest(judged), *near)
                if template.bias:
                    stronger = [factor * strengths["l2__bias"] for factor in STRONGER_BIASES]
                    search.judge([Path(strengths, "l2__bias", stronger, False)])
                    judged = search.candidates[-len(stronger) :]
                    near = [each.params["l2__bias"] for each in judged if suffices(each, errors=0)]
                    strengths["l2__bias"] = max([strengths["l2__bias"], *near])
    return L2(latent=strengths.get("l2__latent"), bias=strengths.get("l2__bias"))


def _lowest(judged: Sequence["Candidate"]) -> float:
    """The strength at which the parabola through the best candidate and its neighbours, in log strength, is lowest."""
    points = sorted((each.params["l2__latent"], each.losses[0]) for each in judged)
    strengths, losses = np.array(points).T
    best = int(np.argmin(losses))
    if not 0 < best < len(points) - 1:
        return float(strengths[best])
    around = slice(best - 1, best + 2)
    square, slope, _ = np.polyfit(np.log2(strengths[around]), losses[around], 2)
    return float(f"{2 ** (-slope / (2 * square)):.3g}")


def _first_of_each(label: Codes, n_labels: int) -> Array:
    """Positions of the first dyad of each label that occurs."""
    first = np.full(n_labels, -1)
    for some in chunks(len(label)):
        found, position = np.unique(label[some], return_index=True)
        first[found] = np.where(first[found] < 0, some.start + position, first[found])
    return np.sort(first[first >= 0])


def _block(dyads: Dyads, one_set: bool, rng: np.random.Generator) -> Array:
    """Positions of the dyads of the largest block with at most `SEARCHED_DYADS`.

    A block grows in steps: it has the same share of rows and of columns, at random. With one id set these are the same
    nodes.
    """
    row_step = rng.permutation(dyads.n_rows) * BLOCK_STEPS // dyads.n_rows
    col_step = row_step if one_set else rng.spawn(1)[0].permutation(dyads.n_cols) * BLOCK_STEPS // dyads.n_cols

    def step(some: slice) -> Array:
        """The step at which the growing block reaches each of some dyads."""
        reached: Array = np.maximum(row_step[dyads.row[some]], col_step[dyads.col[some]])
        return reached

    sizes = np.zeros(BLOCK_STEPS, np.int64)
    for some in chunks(len(dyads)):
        sizes += np.bincount(step(some), minlength=BLOCK_STEPS)
    largest = max(np.searchsorted(sizes.cumsum(), SEARCHED_DYADS, side="right") - 1, np.flatnonzero(sizes)[0])
    return np.concatenate([some.start + np.flatnonzero(step(some) <= largest) for some in chunks(len(dyads))])


def shares_of(top: float, shares: Sequence[float] = SHARES) -> tuple[float, ...]:
    """Shares of the strength at which all latent weights vanish."""
    return tuple(float(f"{share * top:.3g}") for share in shares)


def without_latent(estimator: Any) -> dict[str, Any]:
    """Parameters to set for the same model without latent weights."""
    features = None if estimator.features is None else estimator.features.replaced({"interactions": 0})
    l2 = l2_of(estimator.l2).replaced(dict.fromkeys(("latent", "row", "col", "shared")))
    structure = RANK_ZERO_OF.get(estimator.structure, estimator.structure)
    return {"rank": 0, "structure": structure, "n_terms": None, "features": features, "l2": l2}


def solver_for(estimator: Any, data: Data) -> Any:
    """The solver of a point estimate of the data; for a part of them, "point" might be another."""
    solver = solver_of(estimator.solver)
    if solver is None:
        observed = estimator._read(*data)
        parts, known = estimator._untrained(observed)
        solver = point_solver(parts.objective(known), len(observed.dyads))
    return solver


def vanishing_l2(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """The strength of `l2` at which latent weights vanish: the spectral norm of the score gradients of rank 0.

    Let g_y(r, c) = d loss / d score_y at the fit of rank 0, summed over dyads. Near zero, latent weights a, b change
    the loss by sum_rc g_y(r, c) a_r b_c and cost l2 (|a|^2 + |b|^2) / 2. So they grow only if the matrix g_y of some
    label has a spectral norm above l2. For ordered labels, which share latent weights, the sum of g_y over labels,
    weighted by their standardised values, counts too. With one id set a node has the same weights in both roles, and
    sum_rc g(r, c) a_r a_c is a quadratic form of the matrix (g + g^T) / 2: then the norm of g + g^T counts, and in
    directed structures both.
    """
    plain = clone(estimator).set_params(**without_latent(estimator), early_stopping=None, n_models=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        plain.fit(X, y, sample_weight)
    problem, theta = plain.problem(X, y, sample_weight)
    with problem:
        dyads, slopes = problem.score_gradients(theta)
    if plain._ordered:
        values = numeric_values(plain.classes_)
        slopes = np.column_stack([slopes, slopes @ ((values - values.mean()) / values.std())])
    norms, one_set = [0.0], plain.record_.known.one_set
    for g in slopes.T:
        matrix = sparse.csr_array((g, (dyads.row, dyads.col)), shape=(dyads.n_rows, dyads.n_cols))
        forms = [matrix + matrix.T] if one_set else [matrix]
        if one_set and not is_undirected(*STRUCTURES[plain._structure]):
            forms.append(matrix)
        norms += [
            float(svds(form, k=1, return_singular_vectors=False, random_state=0)[0])
            for form in forms
            if min(form.shape) > 1
        ]
    return max(norms) or 1.0


class Path(NamedTuple):
    """Candidates that differ in one penalty.

    Attributes
    ----------
    fixed : the other parameters
    name : name of the penalty, or None: then `fixed` is the only candidate
    values : values of the penalty
    refined : whether to judge every second value only, from the strongest or the second strongest on until one is worse
        than the one before, and then the better neighbour of the best
    """

    fixed: dict[str, Any]
    name: str | None
    values: Sequence[float]
    refined: bool

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The parameters of each candidate, by increasing penalty.

        The order matters for warm starts: latent weights that vanish under a strong penalty stay zero under a weaker
        one.
        """
        return [self.fixed | {self.name: value} for value in sorted(self.values)] if self.name else [self.fixed]

    @property
    def n_fits(self) -> int:
        """The number of candidates that are judged at most."""
        n = len(self.candidates)
        return n // 2 + 2 if self.refined else n


@dataclass(eq=False)
class Candidate:
    """Parameters, and their log-loss: the mean on each fold (NaN if not judged), and by dyad of the first fold."""

    params: dict[str, Any]
    losses: list[float]
    by_dyad: Array


class Search:
    """Cross-validation on the log-loss, along paths of one penalty.

    All candidates are judged on the first fold, and the best of them, if not clearly worse than the first, on all
    folds. Candidates of a path that are fitted one after the other start from each other (warm start), except the
    coarse steps of a refined path. Every fold is fitted by the solver of a fit to all data.

    `state` : what was judged before, which is not done again; candidates that start from each other are judged again
    unless all of them were.
    """

    def __init__(
        self,
        template: Any,
        data: Data,
        folds: list[tuple[Array, Array]],
        n_jobs: int | None = None,
        verbose: int = 0,
        callback: Callable[[int, int], Any] | None = None,
        state: SearchState | None = None,
    ) -> None:
        self.state = SearchState.none() if state is None else state
        self.callback, self.done, self.planned, self.lock = callback, 0, 0, threading.Lock()
        self.template, self.data, self.folds, self.n_jobs, self.verbose = template, data, folds, n_jobs, verbose
        self.candidates: list[Candidate] = []
        self.parts: dict[tuple[int, int], Data] = {}
        self.marginal_losses: dict[int, dict[str, float]] = {}

    def judge(self, paths: Sequence[Path]) -> None:
        """Judge the candidates of paths: on the first fold, and the best of them on the others."""
        jobs = joblib.Parallel(n_jobs=self.n_jobs, prefer="threads")
        # Warning filters are global to all threads, so they are set once, around the parallel jobs.
        with warnings.catch_warnings():
            for kind in (NotConvergedWarning, UnknownIdWarning, VanishedWarning, WeightWarning):
                warnings.simplefilter("ignore", kind)
            solvers = [solver_for(clone(self.template).set_params(**path.fixed), self.data) for path in paths]
            by_path = jobs(joblib.delayed(self._first_fold)(*each) for each in zip(paths, solvers, strict=True))
            judged = [candidate for group in by_path for candidate in group]
            best, weight = min(judged, key=lambda candidate: candidate.losses[0]), self._weight(0)

            def may_be_best(candidate: Candidate) -> bool:
                difference, error = metrics.paired_difference(candidate.by_dyad, best.by_dyad, weight)
                return difference <= CLEARLY_WORSE * error

            finalists = sorted(filter(may_be_best, judged), key=lambda candidate: candidate.losses[0])
            del finalists[max(FINALISTS, len(judged) // 3) :]
            kept = [[candidate for candidate in group if candidate in finalists] for group in by_path]
            self.planned -= len(self.folds) * sum(path.n_fits for path in paths)
            self.planned += len(judged) + len(finalists) * (len(self.folds) - 1)
            rest = itertools.product(zip(kept, solvers, strict=True), range(1, len(self.folds)))
            jobs(joblib.delayed(self._fold)(*each, number) for each, number in rest if each[0])
        self.candidates += judged
        for candidate in judged if self.verbose else ():
            logger.info("%s: held-out log-loss %.5f", candidate.params, np.nanmean(candidate.losses))

    def _first_fold(self, path: Path, solver: Any) -> list[Candidate]:
        """Judge candidates of a path on the first fold."""
        every = [Candidate(params, [math.nan] * len(self.folds), np.empty(0)) for params in path.candidates]
        if path.refined:
            best = len(every) - 1 - len(every) % 2
            for i in range(best, 0, -2):
                self._fold([every[i]], solver, 0)
                if every[i].losses[0] > every[best].losses[0]:
                    break
                best = i
            # The one between the best and the better of the values that were judged beside it, or both.
            beside = {i: every[2 * i - best].losses[0] for i in (best - 1, best + 1) if 0 <= 2 * i - best < len(every)}
            unknown = len(beside) < 2 or any(map(math.isnan, beside.values()))
            between = [best - 1, best + 1] if unknown else [min(beside, key=beside.__getitem__)]
            self._fold([every[i] for i in between if i < len(every)], solver, 0)
        else:
            self._fold(every, solver, 0)
        return [candidate for candidate in every if len(candidate.by_dyad)]

    def part(self, number: int, held_out: int) -> Data:
        """The table, labels and weights of the training part (0) or the held-out part (1) of a fold."""
        if not isinstance(self.data[0], Pairs):
            return part_of(self.data, self.folds[number][held_out])
        with self.lock:
            # A part of a store is coded anew, once, and may lie on disk until the end of the search.
            if (number, held_out) not in self.parts:
                self.parts[number, held_out] = part_of(self.data, self.folds[number][held_out])
            return self.parts[number, held_out]

    def close(self) -> None:
        """Remove the parts of a store that lie on disk."""
        for pairs, _, _ in self.parts.values():
            discard(pairs)

    def _weight(self, number: int) -> Array | None:
        """Weights of the held-out part of a fold."""
        pairs, _, weight = self.part(number, 1)
        return pairs.dyads.weight if isinstance(pairs, Pairs) else weight

    def _losses(self, number: int, predict: Callable[[Any], dict[str, Array]], classes: Array) -> dict[str, Array]:
        """Log-loss of each held-out dyad of a fold (n,), by predictor; `predict` : from dyads to probabilities."""
        losses: dict[str, list[Array]] = {}
        for X, y, _ in batches_of(*self.part(number, 1)):
            for name, proba in predict(X).items():
                losses.setdefault(name, []).append(_held_out_losses(proba, y, classes))
        return {name: np.concatenate(parts) for name, parts in losses.items()}

    def _fold(self, candidates: list[Candidate], solver: Any, number: int) -> None:
        """Judge candidates of a path on one fold."""
        keys = [_key(candidates[: i + 1], solver, number) for i in range(len(candidates))]
        if self._restored(candidates, keys, number):
            return
        train, weight = self.part(number, 0), self._weight(number)
        # Penalties of a mean of models are chosen for one of them, which can start from another.
        model = clone(self.template).set_params(warm_start=True, n_models=1)
        if model.unknown in ("raise", "nan"):
            # An id may have no labels in the training part of a fold: the policy for unknown ids is not meant for it.
            model.set_params(unknown="prior")
        for key, candidate in zip(keys, candidates, strict=True):
            model.set_params(**candidate.params).set_params(solver=solver).fit(*train)
            losses = self._losses(number, lambda X: {"model": model.predict_proba(X)}, model.classes_)["model"]
            candidate.losses[number] = float(np.average(losses, weights=weight))
            if number == 0:
                candidate.by_dyad = losses
            if number not in self.marginal_losses:
                self.marginal_losses[number] = self._of_marginals(model, number)
            with self.lock:
                self.done += 1
                self.state.losses[key] = candidate.losses[number]
                self.state.by_dyad |= {key: losses} if number == 0 else {}
                self.state.marginals[str(number)] = self.marginal_losses[number]
                self.state.save()
                if self.callback is not None:
                    self.callback(self.done, self.planned)

    def _restored(self, candidates: list[Candidate], keys: list[str], number: int) -> bool:
        """Whether all candidates were judged on a fold before; they then get what was found."""
        state = self.state
        if not (state.losses.keys() >= set(keys) and str(number) in state.marginals):
            return False
        if number == 0 and not state.by_dyad.keys() >= set(keys):
            return False
        for key, candidate in zip(keys, candidates, strict=True):
            candidate.losses[number] = state.losses[key]
            if number == 0:
                candidate.by_dyad = state.by_dyad[key]
                if len(candidate.by_dyad) != len(self.folds[0][1]):
                    raise CheckpointError(f"The checkpoint {state.path} has losses of other pairs: delete it.")
        self.marginal_losses[number] = state.marginals[str(number)]
        with self.lock:
            self.done += len(candidates)
        return True

    def _of_marginals(self, model: Any, number: int) -> dict[str, float]:
        """Mean log-loss of the marginals of the training part of a fold, by name."""

        def predict(X: Any) -> dict[str, Array]:
            return {name: each.proba for name, each in model.marginals(X).items()}

        losses = self._losses(number, predict, model.classes_)
        return {name: float(np.average(each, weights=self._weight(number))) for name, each in losses.items()}

    def marginals(self) -> dict[str, float]:
        """Mean held-out log-loss of the marginals of the training parts, on the same folds."""
        losses = list(self.marginal_losses.values())
        return {name: float(np.mean([each[name] for each in losses])) for name in losses[0]}

    @property
    def best(self) -> Candidate:
        """The candidate of least mean log-loss, of those that were judged on all folds."""
        losses = [np.mean(candidate.losses) for candidate in self.candidates]
        return self.candidates[int(np.nanargmin(losses))]

    def is_near_best(self, candidate: Candidate, errors: float = 1) -> bool:
        """Whether the log-loss on the first fold is near the least: by some standard errors, or a share of `NEAR`."""
        best = self.best
        difference, error = metrics.paired_difference(candidate.by_dyad, best.by_dyad, self._weight(0))
        return difference <= max(errors * error, NEAR * best.losses[0])

    def results(self) -> tuple[dict[str, Any], int]:
        """Results in the form of scikit-learn's `cv_results_`, and the index of the best."""
        all_params = [candidate.params for candidate in self.candidates]
        scores = -np.array([candidate.losses for candidate in self.candidates])
        names = dict.fromkeys(name for params in all_params for name in params)
        results: dict[str, Any] = {
            f"param_{name}": np.ma.array(
                # Filled one by one: NumPy would take a loss, which is a tuple, for a row of a table.
                np.fromiter((params.get(name) for params in all_params), object, len(all_params)),
                mask=[name not in params for params in all_params],
            )
            for name in names
        }
        results["params"] = all_params
        results |= {f"split{k}_test_score": column for k, column in enumerate(scores.T)}
        # Folds differ in difficulty, so a candidate of one fold is compared with the others on that fold.
        complete = np.isfinite(scores).all(axis=1)
        level = scores[complete].mean(axis=0)
        mean = np.where(complete, scores.mean(axis=1), np.nanmean(scores - level, axis=1) + level.mean())
        rank = np.empty(len(mean), np.int32)
        rank[np.lexsort((-mean, ~complete))] = np.arange(1, len(mean) + 1)
        results |= {"mean_test_score": mean, "std_test_score": scores.std(axis=1), "rank_test_score": rank}
        return results, int(np.argmin(rank))


def _key(candidates: list[Candidate], solver: Any, number: int) -> str:
    """What stands for the last of some candidates in the state of a search, fitted one after the other on a fold."""
    about = repr(([candidate.params for candidate in candidates], solver, number))
    return hashlib.sha256(about.encode()).hexdigest()[:24]


def _held_out_losses(proba: Array, y: Any, classes: Array) -> Array:
    """Log-loss of each dyad; a label that the training part lacks has no probability, and costs `UNSEEN_LABEL`."""
    truth = read_labels(y)
    known, losses = np.isin(truth, classes), np.full(len(truth), UNSEEN_LABEL)
    if known.any():
        losses[known] = metrics.log_losses(truth[known], proba[known], classes)
    return losses
