"""The model of a run: how it is found, built and loaded, and its decoding options."""
