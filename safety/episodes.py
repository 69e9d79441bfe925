"""The scripted model, which is fully hijacked: it makes the user's calls, then the attacker's.

    prompt -> user's calls, in order -> (the injected text has been read) -> attacker's calls

It never gives up: a call that is refused does not stop the next one. A real model resists some
injections; this one resists none, so what remains is what the gate does.
"""

from __future__ import annotations

from collections.abc import Sequence

from safety.contestants.ports import Contestant, World
from safety.people import Reader
from safety.values import Call, Step


async def play(
    contestant: Contestant, world: World, prompt: str, calls: Sequence[Call]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Make all calls behind the gate; what became of each, and what a person was asked."""
    belonging = [call for call in calls if call.side == "user"]
    person = Reader(belonging, contestant.person_kind)
    effects = {
        definition.name: definition.effect.has_effects for definition in world.definitions
    }
    steps = []
    async with contestant.open(world, prompt, person) as door:
        for call in calls:
            before = len(person.questions)
            reply = await door.call(call)
            steps.append(
                Step(
                    call=call,
                    ran=reply.ran,
                    has_effects=effects.get(call.tool, True),
                    questions=len(person.questions) - before,
                    reply=reply.text,
                )
            )
    return tuple(steps), tuple(person.questions)
