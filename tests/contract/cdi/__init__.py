"""CDI files beside those that NVIDIA's DRA driver wrote on the same machine."""
