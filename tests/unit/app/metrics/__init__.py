"""What the agent counts, and what a scrape shows of it."""
