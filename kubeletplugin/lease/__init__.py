"""At most one active instance per node: the lease file, its locks and its heartbeat."""
