"""Predictions for what users type on the command line and clients send over HTTP."""
