"""The HTTP service: requests, the engine that decodes for all of them, the page, metrics."""
