"""The network's backend for CPUs: compiled kernels, and training without padding."""
