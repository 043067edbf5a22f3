"""The parameter server: the sequence of commits, the stored models and their rules, checkpoints, and the shell."""
