"""Geweke's joint-distribution test of the sampler on an engine.

Parameters and labels drawn in turn have the distribution of parameters drawn from the prior (Geweke 2004).
"""

from dataclasses import replace

import numpy as np
from scipy import sparse

from dyads.data.dyads import Counts, Side
from dyads.engine.posterior import Posterior, State
from dyads.metrics import effective_sample_size
from dyads.model.loss import Log
from dyads.model.objective import SIDE_RATE, SIDE_SHAPE, BlockPrior, Objective, Penalty
from dyads.model.parameters import Layout
from dyads.model.streams import SweepNoise
from problems import make_dyads, without_self_links


def bound(structure, side=False, n_relations=1, n=10, self_links=True):
    """A small problem, with features of rows, columns and dyads if asked for."""
    dyads = make_dyads(n, 3, 3, one_set=structure.one_set, n_relations=n_relations, n_labels=structure.n_labels)
    dyads = dyads if self_links else without_self_links(dyads)
    if side:
        rng = np.random.default_rng(5)
        rows, cols, pairs = (sparse.csr_array(rng.normal(size=(lines, 2))) for lines in (3, 3, n))
        dyads = replace(dyads, side=Side(rows, None if structure.one_set else cols, pairs))
    layout = Layout(structure, 3, 3, n_relations, dyads.side.widths, 1 if side else 0)
    centre = np.random.default_rng(9).normal(size=layout.size)
    penalty = Penalty.of(layout, {}, "none", Counts.of(dyads, structure.one_set), layout.blocks(centre).shared)
    return Objective(layout, Log(), penalty), dyads


def state_from_prior(problem, rng):
    layout, priors, precision = problem.layout, [], np.ones(3)
    theta = np.zeros(layout.size)
    for i, weights in enumerate(layout.side_weights(theta)):
        if len(weights):
            precision[i] = rng.gamma(SIDE_SHAPE, 1 / SIDE_RATE)
            weights[:] = rng.normal(size=weights.shape) / np.sqrt(precision[i])
    blocks = layout.blocks(theta)
    for role in problem.roles:
        own = blocks[role.place]
        priors.append(BlockPrior.from_hyperprior(own.shape[1], rng))
        own[:] = priors[-1].blocks(len(own), rng)
    if layout.n_relations == 1:
        blocks.shared[:] = problem.shared_prior().blocks(1, rng)
    return State(theta, tuple(priors), precision)


def statistics(state, proba, layout):
    """Bounded functions of everything that is drawn."""
    found = [np.tanh(state.theta).mean(), np.tanh(state.theta**2).mean(), proba[:, 0].mean(), (proba**2).sum(1).mean()]
    for learnt in state.priors:
        found += [np.log(np.diag(learnt.precision)).mean(), np.log(learnt.scale).mean(), np.tanh(learnt.mean).mean()]
    weights = [part for part in layout.side_weights(state.theta) if len(part)]
    found += [np.tanh(part**2).mean() for part in weights] + [np.log(state.side_precision).mean()] * bool(weights)
    return found


def z_scores(engine, structure, n_prior=600, n_sweeps=1500, **choices):
    """Mean statistics of drawing in turn less those of draws from the prior, in standard errors."""
    objective, dyads = bound(structure, **choices)
    rng = np.random.default_rng(0)
    with engine.bind(objective, dyads) as bound_problem:
        problem = Posterior(bound_problem)

        def look(state):
            return statistics(state, problem.proba(state, dyads), problem.layout)

        wanted = np.array([look(state_from_prior(problem, rng)) for _ in range(n_prior)])
        state, found = state_from_prior(problem, rng), []
        for sweep in range(n_sweeps):
            proba = problem.proba(state, dyads)
            label = (proba.cumsum(axis=1) < rng.random(len(dyads))[:, None]).sum(axis=1)
            labelled = replace(dyads, label=label.clip(max=structure.n_labels - 1))
            with engine.bind(objective, labelled) as other_labels:
                state, _ = Posterior(other_labels).sweep(state, SweepNoise(0, 0, sweep))
            found.append(look(state))
    found = np.array(found)
    error = wanted.var(axis=0) / len(wanted) + found.var(axis=0) / effective_sample_size(found[None])
    return (found.mean(axis=0) - wanted.mean(axis=0)) / np.sqrt(error)
