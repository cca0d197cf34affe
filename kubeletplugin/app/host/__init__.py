"""The node's hardware, real or simulated, as the agent finds it."""
