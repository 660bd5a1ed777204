"""The Lightning modules and everything a training run needs."""
