"""Things around a run: its files, machine, memory and processes."""
