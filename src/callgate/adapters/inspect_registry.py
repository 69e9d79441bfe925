"""Entry point of Inspect, which registers callgate for its settings and commands by name."""

from callgate.adapters.inspect_ai import CallgateSandbox as CallgateSandbox
from callgate.adapters.inspect_ai import SessionHooks as SessionHooks
from callgate.adapters.inspect_ai import gate_approver as gate_approver
