"""The script for a machine with a GPU, on a library that stands in for NVML: all but what needs a device or root."""
