"""ResourceSlices: built fresh, validated, written, read back, restored."""
