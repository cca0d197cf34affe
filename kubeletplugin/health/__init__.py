"""A verdict per device with its evidence."""
