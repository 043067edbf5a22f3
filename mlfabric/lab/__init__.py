"""Virtual time: the real shells on an emulated network, under faults and a witness (docs/design.md, section 9)."""
