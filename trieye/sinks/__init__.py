"""Sinks, the destinations of points: MLflow, TensorBoard, the console, Weights & Biases and third parties."""
