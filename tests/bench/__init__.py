"""What the agent costs, as ratios taken in one run: `make bench`."""
