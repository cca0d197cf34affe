"""Builds, starts and stops a one-node cluster, and runs the agent on it with the rights that deploy/ ships."""
