"""What the scheduler would choose, for people and tests: CEL and the structured allocation rules."""
