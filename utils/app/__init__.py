"""The command-line app: options, errors, signals, progress, formatting, tables, charts."""
