"""Code generated from proto/mlfabric/v1 by scripts/generate_proto; never edited by hand."""
