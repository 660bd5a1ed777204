"""The command-line app: start, options, errors, signals, progress, formatting, charts."""
