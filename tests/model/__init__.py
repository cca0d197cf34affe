"""`make model`: the protocol's model (docs/protocol) checked with spin."""
