"""Wakes pods that wait for the kubelet's next try although one would succeed now."""
