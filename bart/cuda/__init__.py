"""The network's backend for NVIDIA's GPUs: rows without padding, copies of weights, kernels in Triton."""
