"""The gets of one model: asked for, planned, served, handed on."""
