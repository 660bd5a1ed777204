"""What a run leaves and needs: its files, the machine, memory, processes."""
