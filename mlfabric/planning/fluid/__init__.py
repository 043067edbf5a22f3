"""The network as arrays, and everything that is compiled: transfers, reservations, searches; pure.

jit, ready         how functions are compiled and kept, and what loads all of them before they are needed
lines, world       what a transfer uses and a reservation takes; a network taken there, profiles taken back
ordering, comparing, shortest, reserving           the order of updates and of gets

All other kernels are built on ``lines`` too; each is named after the stage that it is for.
"""
