"""The cluster agent: manages DeviceClasses."""
