"""The node's memory: who holds which device, how to undo what was done, and what a device name means."""
