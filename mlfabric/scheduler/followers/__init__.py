"""How a model's replica follows its primary, and takes its place."""
