"""What every member's shell shares: its session, the loop around its state machine, orderly and other ends."""
