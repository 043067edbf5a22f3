"""Consistency modes: one small pure file each; who is waited for, what a version is, what is planned."""
