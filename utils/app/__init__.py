"""The ground of every command: options, errors, signals, progress, tables; the files of a run, machine and memory."""
