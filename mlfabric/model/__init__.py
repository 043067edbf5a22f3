"""What a model is, how updates change it, and which samples were trained on: plain values and arithmetic."""
