"""Everything around the agent breaks, one thing at a time, under the agent as a process of its own."""
