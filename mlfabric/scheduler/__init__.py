"""The scheduler: decides for every transfer when, to whom and whether at all."""
