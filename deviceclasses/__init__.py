"""What can be asked for: names, attributes, capacities, opaque configs, the DeviceClass catalogue."""
