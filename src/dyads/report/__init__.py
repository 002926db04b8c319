"""Reports: pictures of a model and its predictions, the page of `dyads report`, and the checks of `dyads describe`."""

from dyads.report.page import report
from dyads.report.pictures import (
    confusion_from_estimator,
    plot_confusion,
    plot_cv_curve,
    plot_explanation,
    plot_images,
    plot_interval,
    plot_latent_map,
    plot_ordered_matrix,
    plot_r_hat,
    plot_reliability,
    plot_trace,
    plot_training_curve,
    reliability_from_estimator,
)

__all__ = [
    "confusion_from_estimator",
    "plot_confusion",
    "plot_cv_curve",
    "plot_explanation",
    "plot_images",
    "plot_interval",
    "plot_latent_map",
    "plot_ordered_matrix",
    "plot_r_hat",
    "plot_reliability",
    "plot_trace",
    "plot_training_curve",
    "reliability_from_estimator",
    "report",
]
