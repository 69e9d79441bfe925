"""An evaluation by Inspect with the policy of callgate: two lines, marked (1) and (2).

    pip install 'callgate[inspect-ai]'

The model here is a script, so that the example runs anywhere; put a real one in its place. With
`sandbox="callgate"` in the task, the commands of a sample also run in callgate's sandbox.
"""

from __future__ import annotations

import tempfile

from inspect_ai import Task, eval
from inspect_ai.approval import ApprovalPolicy
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool

from callgate.adapters.inspect_ai import gate_approver


@tool
def send_mail() -> Tool:
    async def execute(to: str) -> str:
        """Send a mail.

        Args:
            to: To whom.
        """
        return f"sent to {to}"

    return execute


def main() -> None:
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "send_mail", {"to": "ann@example.org"}),
        ModelOutput.from_content("mockllm/model", "done"),
    ]
    for each in outputs:  # else Inspect counts tokens with data that it downloads
        each.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    task = Task(
        dataset=[Sample(input="write to ann@example.org")],
        solver=[use_tools(send_mail()), generate()],
    )
    approver = gate_approver(effects={"send_mail": "network"}, mode="read")  # (1)
    with tempfile.TemporaryDirectory() as logs:
        (log,) = eval(
            task,
            model=get_model("mockllm/model", custom_outputs=outputs),
            approval=[ApprovalPolicy(approver, "*")],  # (2)
            log_dir=logs,
            display="none",
        )
        for message in log.samples[0].messages:
            if isinstance(message, ChatMessageTool):
                print(message.error.message if message.error else message.text)


if __name__ == "__main__":
    main()
