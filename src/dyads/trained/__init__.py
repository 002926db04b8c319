"""What is done with a trained record: files, predictions, cold start, calibration, explanations, recommendations."""
