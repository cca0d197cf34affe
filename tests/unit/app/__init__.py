"""Tests of the agent's wiring."""
