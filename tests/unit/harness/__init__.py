"""What the tests themselves count and report must be right too."""
