"""What answers: probes, metrics, and the instance's own control socket."""
