"""What Inspect loads by our entry point, so that its settings and commands know us by name."""

from callgate.adapters.inspect_ai import SessionHooks as SessionHooks
from callgate.adapters.inspect_ai import gate_approver as gate_approver
from callgate.adapters.inspect_sandbox import CallgateSandbox as CallgateSandbox
