"""The person of the coding rows."""

from __future__ import annotations

from callgate import Answer, Confirmation, Outcome


class Approver:
    """Answers all questions alike, and remembers them."""

    def __init__(self) -> None:
        self.allows = True
        self.questions: list[str] = []

    async def confirm(self, question: Confirmation) -> Answer:
        self.questions.append(f"{question.tool}: {question.why}")
        return Answer(decision=Outcome.ALLOW if self.allows else Outcome.DENY)
