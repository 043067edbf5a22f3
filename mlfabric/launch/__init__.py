"""Processes on this machine: starting them, their output, restarting them, leaving none behind. Shell-level.

    child, guard     two small scripts of the standard library alone, for the processes that are started and their end
    signals          SIGINT, SIGTERM and SIGHUP as one event
    processes        one program, its process group and its pipes; the nursery that ends them all
    output           the lines of many processes on one terminal
    supervisor       starts a service again when it dies
    status           what the scheduler says of the fabric
    fabric           an embedded fabric: scheduler, servers, monitor
    workers          the processes of one training job

How nothing is left behind. Each child is the leader of a process group and is ended through it. The kernel sends a
child SIGTERM when its parent dies (``child``). And all descendants inherit a mark in their environment, by which a
guard process finds and ends whatever is left once the launcher is gone, however it went (``guard``).
"""
