"""Full-batch quasi-Newton: SciPy's L-BFGS-B."""

import math
from typing import Any, Protocol

import numpy as np
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import threadpool_limits

from dyads.solve.solution import Ended, Monitor, Options, Solution

Array = np.ndarray[Any, Any]

MEMORY = 20
"""Past steps the curvature is estimated from."""


SCALED_VALUE = 1e6
"""What SciPy sees the initial value as."""


class _NotFinite(Exception):
    """The objective or its gradient is not a finite number."""


class Differentiable(Protocol):
    """What L-BFGS needs of a problem."""

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]: ...


class LBFGS:
    """Minimise value_and_gradient(theta) to a tolerance; no step size, the same result whatever the threads."""

    needs_smooth = True
    max_iter = 500
    tol = 1e-6

    def minimise(self, problem: Differentiable, theta: Array, options: Options, monitor: Monitor) -> Solution:
        best, n_iter, stopped = theta, 0, False
        # SciPy's tolerance is relative only for values above one.
        initial = abs(problem.value_and_gradient(theta)[0])
        scale = SCALED_VALUE / initial if 0 < initial < math.inf else 1.0

        def evaluate(point: Array) -> tuple[float, Array]:
            value, gradient = problem.value_and_gradient(point)
            if not (math.isfinite(value) and np.isfinite(gradient).all()):
                raise _NotFinite
            return value * scale, gradient * scale

        def after(intermediate_result: OptimizeResult) -> None:
            nonlocal best, n_iter, stopped
            best, n_iter = intermediate_result.x.copy(), n_iter + 1
            if monitor(n_iter, float(intermediate_result.fun) / scale, best):
                stopped = True
                raise StopIteration

        max_iter = self.max_iter if options.max_iter is None else options.max_iter
        settings = {
            "maxiter": max_iter,
            "maxfun": 20 * max_iter + 20,
            "maxcor": MEMORY,
            "ftol": self.tol if options.tol is None else options.tol,
            "gtol": 1e-9,
        }
        try:
            # BLAS sums in an order that depends on its number of threads.
            with threadpool_limits(1, "blas"):
                result = minimize(evaluate, theta, jac=True, method="L-BFGS-B", callback=after, options=settings)
        except _NotFinite:
            reason = f"in L-BFGS iteration {n_iter + 1}; rescale the weights or raise l2, which keeps scores small"
            return Solution(best, n_iter, "divergence", reason)
        # Status 1 is the limit; 2 says that no step lowers the value any more, which is the tolerance of the numbers.
        ended: Ended = "monitor" if stopped else "limit" if result.status == 1 else "tolerance"
        return Solution(np.asarray(result.x), n_iter, ended)
