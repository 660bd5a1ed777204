"""The report of a run as one page to open in a browser."""
