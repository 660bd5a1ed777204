"""The recipe around the model: arguments, data, training, evaluation."""
