"""One run, from its arguments to its scores."""
