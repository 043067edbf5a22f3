"""What a cluster would do: the planner in virtual time, the baselines' closed forms, advice (pure)."""
