"""Scoring: generation over a data set, ROUGE."""
