# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""How fast transfers go that share links, compiled.

Links are shared as TCP would in the long run: nobody goes faster than its pace, and what some cannot use of a link, be
it for their pace or for their other link, the others have in parts by their weights, equal ones as a rule (max-min
fairness). Each link has a *level*: what a transfer may have of it at most for each 1 of its weight. It follows from the
levels of the other links of its transfers, so a change goes on from link to link until nothing changes any more. What
changes at one instant is shared out once, before time goes on or a rate is looked at: many transfers that share a link
begin and end together.
"""

from __future__ import annotations

from mlfabric.scheduler.planning.fluid.jit import compiled, inner
from mlfabric.twin.flow_field import DRAINS, NOBODY, QUEUE_HEAD, QUEUED, settle_place

__all__ = ["carried_by_now", "enter_links", "leave_links", "set_rates", "share_out"]

MOST_LOOKS = 400  # at links for one change; far more than it takes, but for rounding that goes on for ever


@inner
def _limit(field, f, link):
    """How fast a transfer may go but for one of its links, for each 1 of its weight."""
    flow = field.flows[f]
    other = flow.down if link == flow.up else flow.up
    pace = flow.pace / flow.weight
    return min(pace, field.levels[other]) if other >= 0 else pace


@inner
def _after(field, f, link):
    """The next transfer on a link."""
    return field.flows[f].up_next if link == field.flows[f].up else field.flows[f].down_next


@compiled
def _relevel(field, link):
    """Find what each transfer may have of a link, so that those who can use it share what the others leave of it.

    Return whether that is something else than before. Where all are limited elsewhere it is the whole link.
    """
    rate, wanted = field.rates[link], field.wanted[link]
    level = rate / max(1.0, wanted)
    while wanted > 0.0:
        left, able = rate, wanted
        f = field.head[link]
        while f >= 0:
            limit = _limit(field, f, link)
            if limit < level:
                left -= limit * field.flows[f].weight
                able -= field.flows[f].weight
            f = _after(field, f, link)
        found = left / able if able > 0.0 else rate
        if found <= level * (1.0 + 1e-12):
            break
        level = found
        if able == 0.0:
            break
    changed = abs(level - field.levels[link]) > 1e-9 * level
    field.levels[link] = level
    return changed


@compiled
def _reshare(field, f):
    """Settle what a transfer has sent, and give it the rate that its links have for it now."""
    flow, now = field.flows[f], field.now[0]
    bps = flow.pace
    if flow.up >= 0:
        bps = min(bps, field.levels[flow.up] * flow.weight)
    if flow.down >= 0:
        bps = min(bps, field.levels[flow.down] * flow.weight)
    if bps == flow.bps:
        return
    flow.left = max(0.0, flow.left - (now - flow.since) * flow.bps)
    flow.since, flow.bps = now, bps
    flow.due = now + flow.left / bps
    settle_place(field, flow.place)


@inner
def _look_at(field, link):
    """Have a link looked at, unless it is to be."""
    if link >= 0 and field.marks[link] == 0:
        field.marks[link] = 1
        field.queue[(field.scalars[QUEUE_HEAD] + field.scalars[QUEUED]) % len(field.queue)] = link
        field.scalars[QUEUED] += 1


@compiled
def share_out(field):
    """Share out what the links carry that are to be looked at, and all that depend on them."""
    looks = MOST_LOOKS + 4 * field.scalars[QUEUED]
    while field.scalars[QUEUED] > 0:
        link = field.queue[field.scalars[QUEUE_HEAD]]
        field.scalars[QUEUE_HEAD] = (field.scalars[QUEUE_HEAD] + 1) % len(field.queue)
        field.scalars[QUEUED] -= 1
        field.marks[link] = 0
        looks -= 1
        changed = _relevel(field, link)
        f = field.head[link]
        while f >= 0:
            if changed and looks > 0:
                _look_at(field, field.flows[f].down if link == field.flows[f].up else field.flows[f].up)
            _reshare(field, f)
            f = _after(field, f, link)


@compiled
def enter_links(field, f):
    """Put a transfer on its links; it has no rate before these are shared out."""
    flow, flows = field.flows[f], field.flows
    flow.up_next, flow.up_last, flow.down_next, flow.down_last = NOBODY, NOBODY, NOBODY, NOBODY
    if flow.up >= 0:
        field.wanted[flow.up] += flow.weight
        flow.up_next = field.head[flow.up]
        if flow.up_next >= 0:
            flows[flow.up_next].up_last = f
        field.head[flow.up] = f
    if flow.down >= 0:
        field.wanted[flow.down] += flow.weight
        flow.down_next = field.head[flow.down]
        if flow.down_next >= 0:
            flows[flow.down_next].down_last = f
        field.head[flow.down] = f
    _look_at(field, flow.up)
    _look_at(field, flow.down)


@compiled
def leave_links(field, f):
    """Take a transfer that has sent everything off its links; the others have its part when these are shared out."""
    flow, flows = field.flows[f], field.flows
    if flow.up >= 0:
        field.wanted[flow.up] -= flow.weight
        field.carried[flow.up] += flow.bits
        if flow.up_last >= 0:
            flows[flow.up_last].up_next = flow.up_next
        else:
            field.head[flow.up] = flow.up_next
        if flow.up_next >= 0:
            flows[flow.up_next].up_last = flow.up_last
    if flow.down >= 0:
        field.wanted[flow.down] -= flow.weight
        field.carried[flow.down] += flow.bits
        if flow.down_last >= 0:
            flows[flow.down_last].down_next = flow.down_next
        else:
            field.head[flow.down] = flow.down_next
        if flow.down_next >= 0:
            flows[flow.down_next].down_last = flow.down_last
    _look_at(field, flow.up)
    _look_at(field, flow.down)


@compiled
def set_rates(field, rates):
    """Give all links other rates from now on."""
    for link in range(len(rates)):
        if field.rates[link] != rates[link]:
            field.rates[link] = rates[link]
            _look_at(field, link)
    share_out(field)


@compiled
def carried_by_now(field, bits):
    """Say what each link has carried, that of transfers which are under way included."""
    bits[:] = field.carried
    for n in range(field.scalars[DRAINS]):
        flow = field.flows[field.drains[n]]
        sent = flow.bits - max(0.0, flow.left - (field.now[0] - flow.since) * flow.bps)
        if flow.up >= 0:
            bits[flow.up] += sent
        if flow.down >= 0:
            bits[flow.down] += sent
