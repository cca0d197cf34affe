"""The demo, as people run it."""
