"""NVML turned into devices, each GPU probed on its own."""
