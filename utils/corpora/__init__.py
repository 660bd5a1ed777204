"""Getting and making data."""
