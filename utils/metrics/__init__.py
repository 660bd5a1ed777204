"""Pure functions of predictions and references."""
