"""The kubelet's side of the claim route: sockets, registration, gRPC services."""
