"""Predictions of any task for what users type, on the command line and over HTTP."""
