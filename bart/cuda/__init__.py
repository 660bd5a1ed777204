"""What the network computes on NVIDIA's GPUs in other ways than on other devices."""
