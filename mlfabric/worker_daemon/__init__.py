"""Carries out the scheduler's instructions next to a worker, and the API that training scripts use."""
