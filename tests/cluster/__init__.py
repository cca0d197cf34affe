"""The real-node suite: a kubelet, scheduler, API server and containerd on this machine."""
