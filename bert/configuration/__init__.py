"""BERT's architecture in a config."""
