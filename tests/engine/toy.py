"""An engine in plain NumPy, without a compiler, threads or shards: what it passes of the laws, the seam is worth."""

from contextlib import nullcontext

import numpy as np

from dyads.model.parameters import Role
from dyads.model.structure import score
from problems import PULLS, loss_of_one


class Toy:
    def bind(self, objective, dyads, counts=None):
        return nullcontext(ToyProblem(objective, dyads))


class ToyProblem:
    def __init__(self, objective, dyads, theta=None):
        self.objective, self.dyads, self.structure = objective, dyads, objective.structure
        self.theta, self.blocks, self.without_blocks = lambda: theta, objective.layout.blocks, lambda: None
        self.roles = (Role.NODE, Role.SHARED) if self.structure.one_set else (Role.ROW, Role.COL, Role.SHARED)
        self.blocks_in_turn = lambda theta: ToyProblem(objective, dyads, theta.copy())

    def each(self, theta, held=None):
        """The weighted loss of each dyad, its derivatives by the scores, and the derivative of these by theta."""
        data, n = self.dyads if held is None else held, self.structure.n_labels
        for i, pair in enumerate(zip(*data.codes, strict=True)):
            codes, weight = (*pair, 0)[:3], 1.0 if data.weight is None else data.weight[i]
            own = [table[code] for table, code in zip(self.blocks(theta), codes, strict=True)]
            s, J = np.zeros(n), np.zeros((n, len(theta)))
            score(self.structure, *own, s)
            value, g, C = loss_of_one(self.objective.loss, data.label[i], s)
            for out, unit in zip(J, np.eye(n), strict=True):
                for pull, table, code in zip(PULLS, self.blocks(out), codes, strict=True):
                    pull(self.structure, *own, unit, table[code])
            yield weight * value, weight * g, weight * C, J

    def loss(self, theta, held=None):
        return sum(value for value, _, _, _ in self.each(theta, held))

    def value(self, theta):
        return self.loss(theta) + self.objective.add_penalty(theta, np.zeros_like(theta))

    def value_and_gradient(self, theta):
        gradient = sum(J.T @ g for _, g, _, J in self.each(theta))
        return self.loss(theta) + self.objective.add_penalty(theta, gradient), gradient

    def solve(self, role):
        """Move each block by a Newton step, shortened until the objective does not rise."""
        theta, bend, flat = self.theta(), np.zeros_like(self.theta()), np.zeros_like(self.theta())
        self.objective.add_penalty(np.ones_like(theta), bend)
        self.objective.add_penalty(np.zeros_like(theta), flat)
        for block in self.blocks(np.arange(len(theta)))[role.place]:
            value, gradient = self.value_and_gradient(theta)
            M = np.diag((bend - flat)[block]) + sum(J[:, block].T @ C @ J[:, block] for _, _, C, J in self.each(theta))
            start, step = theta[block], np.linalg.lstsq(M, gradient[block], rcond=1e-12)[0]
            theta[block] = start - step
            while self.value(theta) > value and np.abs(step).max() > 1e-9:
                step = step / 2
                theta[block] = start - step
