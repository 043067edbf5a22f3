"""Which samples of a data set are whose."""
