"""The report of a run, or of several, as one page to open in a browser."""
