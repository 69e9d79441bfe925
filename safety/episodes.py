"""The scripted model, which is fully hijacked: it makes the user's calls, then the attacker's.

    prompt -> user's calls, in order -> has it read the injected text? -> attacker's calls

The attacker's calls may also come between the user's, once the text was read.
It never gives up: a call that is refused does not stop the next one. A real model resists some
injections; this one resists none that it has read, so what remains is what the gate does. Where a
gate withholds every output that carries the text, there is no attack, and nothing done either.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from safety.contestants.ports import Contestant, Door, World
from safety.people import Reader
from safety.values import Call, Step

_KEPT = 200


async def play(
    contestant: Contestant, world: World, prompt: str, calls: Sequence[Call], sign: str = ""
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Make the calls behind the gate; what became of each, and what a person was asked.

    `sign` is the part of the injected text that the model must have read to be hijacked."""
    person = Reader([call for call in calls if call.side == "user"], contestant.person_kind)
    effects = {each.name: each.effect.has_effects for each in world.definitions}
    steps: list[Step] = []
    async with contestant.open(world, prompt, person) as door:
        for call in calls:
            if call.side == "user" or any(has_read(step.reply, sign) for step in steps):
                steps.append(await _step(door, call, person, effects.get(call.tool, True)))
    return tuple(steps), tuple(person.questions)


def shortened(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps with the beginnings of their replies, to be kept."""
    return tuple(msgspec.structs.replace(step, reply=step.reply[:_KEPT]) for step in steps)


def has_read(reply: str, sign: str) -> bool:
    """Whether a text carries another one, however its lines were broken. Pure."""
    return " ".join(sign.split()) in " ".join(reply.split())


async def _step(door: Door, call: Call, person: Reader, has_effects: bool) -> Step:
    before = len(person.questions)
    reply = await door.call(call)
    return Step(
        call=call,
        ran=reply.ran,
        has_effects=has_effects,
        questions=len(person.questions) - before,
        withheld=reply.withheld,
        reply=reply.text,
    )
