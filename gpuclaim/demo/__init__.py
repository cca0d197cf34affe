"""What the demo runs on: stand-ins for the parts of a cluster that aren't ours."""
