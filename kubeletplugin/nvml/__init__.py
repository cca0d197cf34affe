"""The hardware boundary: a Protocol of the NVML calls we use, real (nvidia-ml-py) and simulated."""
