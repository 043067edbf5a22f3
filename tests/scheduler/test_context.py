"""Who is here, by role: whatever came and went."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.specs import Member, Role
from mlfabric.network import Network
from mlfabric.scheduler.context import Context, NumberMaker, SchedulerConfig, TicketMaker
from mlfabric.scheduler.records import MemberRecord, MemberState


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(Role), st.sampled_from(MemberState)), max_size=20))
def test_who_is_here_in_a_role_are_the_last_of_each_name_by_name(joined: list[tuple[str, Role, MemberState]]) -> None:
    config = SchedulerConfig(epoch=1, ticket_secret=bytes(16))
    context = Context(config, Network.star(1), TicketMaker(config.ticket_secret), NumberMaker(1))
    for incarnation, (name, role, state) in enumerate(joined):
        member = Member(name=name, role=role, incarnation=incarnation, host=name, address=f"{name}:1")
        context.admit(MemberRecord(member, state, since_ns=0))
    for role in Role:
        wanted = [m for m in context.members.values() if m.member.role is role and m.state is MemberState.HERE]
        assert context.here(role) == sorted(wanted, key=lambda m: m.member.name)
