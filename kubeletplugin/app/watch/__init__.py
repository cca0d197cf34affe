"""What is followed of others: this node's claims and pods, and what other device plugins give out."""
