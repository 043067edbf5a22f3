# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Which of many transfers would end first, compiled (paper, algorithm 1: the argmin over ``t_en``).

A tree over transfers in order of size, branch and bound. Transfers of equal route, size and readiness always have one
``t_en`` and share a *leaf*, in which they go by rank. Two lower bounds hold for all below a node:

- the least ``t_en`` found so far, because reservations only ever lengthen a transfer;
- when the smallest of them would end over the links that all of them cross, at the highest rate that any of them gets
  on the others (its *cap*). It is exact for a transfer with a link of its own without reservations, so the search goes
  nearly directly to the best: most picks look at a few transfers, however many there are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, MOST_BPS, Ints, reach
from mlfabric.planning.fluid.jit import compiled, lean

__all__ = ["NOBODY", "Transfers", "Tree", "plant", "remove", "shortest"]

NOBODY = HORIZON_NS


class Transfers(NamedTuple):
    """Columns by rank, which breaks ties.

    ``common`` is a route (one number) over the links that all of them cross, ``cap_bps`` the most that each gets on
    the others. A transfer that crosses no link, or is in flight already, has no ``bits``: it ends at ``ready_ns``.
    """

    route: Ints
    bits: Ints
    ready_ns: Ints
    cap_bps: Ints
    common: Ints


class Tree(NamedTuple):
    """Bounds by node (1 is the root, the children of n are 2n and 2n + 1); by leaf its members.

    A leaf's members that remain are ``members[next[leaf] : until[leaf]]``. ``leaf`` is by rank. ``later``
    is scratch: nodes that a search has postponed, and their bounds.
    """

    end_ns: Ints
    rank: Ints
    bits: Ints
    ready_ns: Ints
    cap_bps: Ints
    members: Ints
    next: Ints
    until: Ints
    leaf: Ints
    later: Ints


@lean
def _is_alike(transfers, one, other):
    """Whether two transfers always end together."""
    return (
        transfers.route[one] == transfers.route[other]
        and transfers.bits[one] == transfers.bits[other]
        and transfers.ready_ns[one] == transfers.ready_ns[other]
    )


@compiled
def _leaves(transfers, members):
    """Where each leaf's members begin, and one more."""
    begins = np.empty(len(members) + 1, np.int64)
    count = 0
    for i in range(len(members)):
        if i == 0 or not _is_alike(transfers, members[i - 1], members[i]):
            begins[count] = i
            count += 1
    begins[count] = len(members)
    return begins[: count + 1]


@lean
def _join(tree, node):
    """Take a node's bounds from its children."""
    left, right = 2 * node, 2 * node + 1
    tree.end_ns[node] = min(tree.end_ns[left], tree.end_ns[right])
    tree.rank[node] = min(tree.rank[left], tree.rank[right])
    tree.bits[node] = min(tree.bits[left], tree.bits[right])
    tree.ready_ns[node] = min(tree.ready_ns[left], tree.ready_ns[right])
    tree.cap_bps[node] = max(tree.cap_bps[left], tree.cap_bps[right])


@lean
def _fill(tree, transfers, leaf, node):
    """Give a leaf the bounds of its next member, or of none."""
    if tree.next[leaf] < tree.until[leaf]:
        first = tree.members[tree.next[leaf]]
        tree.rank[node], tree.bits[node] = first, transfers.bits[first]
        tree.ready_ns[node], tree.cap_bps[node] = transfers.ready_ns[first], transfers.cap_bps[first]
    else:
        tree.end_ns[node], tree.rank[node], tree.bits[node] = HORIZON_NS, NOBODY, HORIZON_NS
        tree.ready_ns[node], tree.cap_bps[node] = HORIZON_NS, 0


@compiled
def plant(transfers, members, end_ns, leaf):
    """Make a tree of some transfers.

    ``members`` are sorted by (bits, highest cap first, route, readiness, rank); ``end_ns`` is a lower bound of each
    transfer's ``t_en``; ``leaf`` is by rank, and is filled.
    """
    begins = _leaves(transfers, members)
    count = len(begins) - 1
    half = 1
    while half < count:
        half *= 2
    nodes = np.empty((5, 2 * half), np.int64)
    remaining = np.zeros((2, half), np.int64)
    later = np.empty((64, 2), np.int64)
    tree = Tree(nodes[0], nodes[1], nodes[2], nodes[3], nodes[4], members, remaining[0], remaining[1], leaf, later)
    for i in range(half):
        if i < count:
            tree.next[i], tree.until[i] = begins[i], begins[i + 1]
            tree.end_ns[half + i] = end_ns[members[begins[i]]]
            for k in range(begins[i], begins[i + 1]):
                leaf[members[k]] = i
        _fill(tree, transfers, i, half + i)
    for node in range(half - 1, 0, -1):
        _join(tree, node)
    return tree


@lean
def remove(tree, transfers, leaf):
    """Remove the next member of a leaf."""
    tree.next[leaf] += 1
    node = leaf + len(tree.next)
    _fill(tree, transfers, leaf, node)
    while node > 1:
        node //= 2
        _join(tree, node)


@lean
def _raise(tree, node, end_ns):
    """Raise the least end of a leaf that is not empty."""
    tree.end_ns[node] = end_ns
    while node > 1:
        node //= 2
        least = min(tree.end_ns[2 * node], tree.end_ns[2 * node + 1])
        if least == tree.end_ns[node]:
            break
        tree.end_ns[node] = least


@lean
def _bound(lines, routes, transfers, tree, node):
    """When the best transfer below a node may end."""
    end_ns = reach(lines, routes, transfers.common[0], tree.cap_bps[node], tree.bits[node], tree.ready_ns[node])
    return max(end_ns, tree.end_ns[node])


@lean
def _is_like_parent(tree, node):
    """Whether the best below a node may be as good as the best below its parent."""
    parent = node // 2
    return (
        tree.bits[node] == tree.bits[parent]
        and tree.cap_bps[node] == tree.cap_bps[parent]
        and tree.ready_ns[node] == tree.ready_ns[parent]
    )


@lean
def _end_of(lines, routes, transfers, tree, node, keeps):
    """When the next transfer of a leaf ends; a new lower bound if ``keeps``."""
    i = tree.rank[node]
    end_ns = reach(lines, routes, transfers.route[i], MOST_BPS, transfers.bits[i], transfers.ready_ns[i])
    if keeps and end_ns > tree.end_ns[node]:
        _raise(tree, node, end_ns)
    return end_ns


@lean
def shortest(lines, routes, transfers, tree, keeps):
    """Return the leaf whose next transfer ends first (of equals, the least rank), and when; -1 if none ever ends.

    ``keeps`` says that what is reserved now stays, so that ends found are lower bounds from now on.
    """
    half = len(tree.next)
    best, best_ns, best_rank = -1, HORIZON_NS, NOBODY
    node, bound_ns, depth = 1, _bound(lines, routes, transfers, tree, 1), 0
    while node > 0:
        while node < half and (bound_ns, tree.rank[node]) < (best_ns, best_rank):
            left, right = 2 * node, 2 * node + 1
            left_ns, right_ns = max(bound_ns, tree.end_ns[left]), max(bound_ns, tree.end_ns[right])
            if not _is_like_parent(tree, left):
                left_ns = _bound(lines, routes, transfers, tree, left)
            if not _is_like_parent(tree, right):
                right_ns = _bound(lines, routes, transfers, tree, right)
            if (left_ns, tree.rank[left]) <= (right_ns, tree.rank[right]):
                node, bound_ns = left, left_ns
                tree.later[depth, 0], tree.later[depth, 1] = right, right_ns
            else:
                node, bound_ns = right, right_ns
                tree.later[depth, 0], tree.later[depth, 1] = left, left_ns
            depth += 1
        if node >= half and (bound_ns, tree.rank[node]) < (best_ns, best_rank):
            end_ns = _end_of(lines, routes, transfers, tree, node, keeps)
            if end_ns < HORIZON_NS and (end_ns, tree.rank[node]) < (best_ns, best_rank):
                best, best_ns, best_rank = node - half, end_ns, tree.rank[node]
        depth -= 1
        node, bound_ns = (tree.later[depth, 0], tree.later[depth, 1]) if depth >= 0 else (0, 0)
    return best, best_ns
