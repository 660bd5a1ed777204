"""The network's backend for CPUs: compiled kernels for inference and training."""
