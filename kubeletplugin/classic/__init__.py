"""What another device plugin has given out of this node's devices: the classic route, as the kubelet tells of it."""
