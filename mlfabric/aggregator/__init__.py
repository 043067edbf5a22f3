"""The aggregator: sums updates on their way to a server, and hands models on."""
