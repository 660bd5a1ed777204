"""The architecture configuration."""
