"""Reports: pictures of a model and its predictions, the page of `dyads report`, and the checks of `dyads describe`."""

from dyads.report.page import report
from dyads.report.pictures import (
    ConfusionDisplay,
    ExplanationDisplay,
    IntervalDisplay,
    MapDisplay,
    MixingDisplay,
    ReliabilityDisplay,
    SearchDisplay,
    TrainingDisplay,
    plot_images,
    plot_ordered_matrix,
)

__all__ = [
    "ConfusionDisplay",
    "ExplanationDisplay",
    "IntervalDisplay",
    "MapDisplay",
    "MixingDisplay",
    "ReliabilityDisplay",
    "SearchDisplay",
    "TrainingDisplay",
    "plot_images",
    "plot_ordered_matrix",
    "report",
]
