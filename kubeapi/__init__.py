"""Talking to the API server: narrow client, list-watch, apply, events, leases."""
