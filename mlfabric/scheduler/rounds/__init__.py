"""AllReduce among workers: rounds, their shapes, and what they tell of links."""
