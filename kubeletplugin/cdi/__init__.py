"""CDI specs: the driver's and one small one per claim."""
