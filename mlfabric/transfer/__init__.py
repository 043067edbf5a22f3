"""What moves and what is said about it: data connections at both ends, sums and relays of buffers that still fill.

Nothing is imported here: state machines need the pure modules of this room (``offers``, ``precedence``) without the
channels and tensors of the others.
"""
