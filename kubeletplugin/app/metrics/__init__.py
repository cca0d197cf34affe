"""What Prometheus scrapes: the catalogue of metric families, their counters, and a view of the node at scrape time."""
