"""The updates of one model: asked for, planned, summed, settled."""
