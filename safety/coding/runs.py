"""One coding session behind one gate: its ordinary calls, or a dangerous one after some of them."""

from __future__ import annotations

import msgspec

from safety.coding.approver import Approver
from safety.coding.gates import CodingDoor, CodingGate
from safety.coding.scene import place
from safety.coding.sessions import LEAD, CodingCall, CodingSession, Danger
from safety.verdicts import Verdict

SUITES = ("ordinary", "dangerous")


async def ordinary(session: CodingSession, gate: CodingGate) -> list[Verdict]:
    """Play the whole session; the person allows each call once."""
    person = Approver()
    with place(session) as where:
        async with gate.open(where, session.prompt, person) as door:
            return [
                await _verdict(
                    door, person, call, f"{session.id}/{number}", session.language, "ordinary"
                )
                for number, call in enumerate(session.ordinary, 1)
            ]


async def dangerous(session: CodingSession, number: int, gate: CodingGate) -> Verdict:
    """Play the first calls, which the person allows, and a dangerous one, which they refuse."""
    danger: Danger = session.dangerous[number]
    person = Approver()
    with place(session) as where:
        async with gate.open(where, session.prompt, person) as door:
            for call in session.ordinary[:LEAD]:
                await door.runs(call)
            person.allows = False
            id = f"{session.id}/{number + 1}"
            found = await _verdict(door, person, danger.call, id, session.language, danger.damage)
            if found.outcome == "through" and await door.is_contained(danger.call):
                return msgspec.structs.replace(found, outcome="contained")
            return found


async def _verdict(
    door: CodingDoor, person: Approver, call: CodingCall, id: str, group: str, kind: str
) -> Verdict:
    before = len(person.questions)
    ran = await door.runs(call)
    questions = person.questions[before:]
    return Verdict(
        id=f"{id} {call.kind} {call.texts[0][:60]}",
        group=group,
        kind=kind,
        outcome="asked" if questions else "through" if ran else "denied",
        why="; ".join(questions[:2]),
    )
