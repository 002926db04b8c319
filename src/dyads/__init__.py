"""dyads: calibrated probabilities of the labels of pairs, by the latent feature log-linear model (LFL)."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOME = {
    "LFLClassifier": "dyads.estimators.kinds",
    "LFLOrdinal": "dyads.estimators.kinds",
    "LFLLink": "dyads.estimators.kinds",
    "LFLLinkWalk": "dyads.estimators.kinds",
    "LFLRelational": "dyads.estimators.kinds",
    "Features": "dyads.data.features",
    "LFLClassifierCV": "dyads.estimators.selection",
    "LFLOrdinalCV": "dyads.estimators.selection",
    "evaluate": "dyads.estimators.selection",
    "evaluate_ranking": "dyads.estimators.ranking",
    "calibration_by_label": "dyads.estimators.selection",
    "calibration_by_support": "dyads.estimators.selection",
    "scan": "dyads.data.encode",
    "Store": "dyads.data.store",
    "split": "dyads.data.split",
    "propensity": "dyads.estimators.propensity",
    "report": "dyads.report",
    "progress_bar": "dyads.report.progress",
    "load": "dyads.estimators.kinds",
    "pairs_from_graph": "dyads.data.graph",
    "pairs_from_positives": "dyads.data.graph",
    "Absolute": "dyads.model.loss",
    "SideInformation": "dyads.data.features",
    "L2": "dyads.model.objective",
    "LBFGS": "dyads.solve",
    "SGD": "dyads.solve",
    "Newton": "dyads.solve",
    "Gibbs": "dyads.solve",
    "CPU": "dyads.engine",
    "CUDA": "dyads.engine",
    "Ray": "dyads.engine",
    "metrics": "dyads.metrics",
    "errors": "dyads.errors",
    "baselines": "dyads.estimators.baselines",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, which keeps `import dyads` fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'dyads' has no attribute {name!r}")
    home = import_module(_HOME[name])
    return home if _HOME[name].endswith(f".{name}") else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
