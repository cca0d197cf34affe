"""Wiring of the node agent: settings, logs, start order, the local control socket."""
