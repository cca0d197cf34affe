"""What people and the kubelet are told: Events, claims' status, health."""
