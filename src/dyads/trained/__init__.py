"""Uses of a trained record: model files, predictions, cold start, calibration, explanations, recommendations."""
