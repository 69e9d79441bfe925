"""goose by Block: supported in the sandbox and behind the ACP proxy, but without a hook."""

from __future__ import annotations

from callgate.features.agents.known.values import (
    Agent,
    AgentHome,
)

# fmt: off
AGENT = Agent(
    name="goose",
    label="goose",
    programs=("goose",),
    hosts=("api.openai.com", "api.anthropic.com"),
    homes=(
        AgentHome(path=".config/goose", variable="XDG_CONFIG_HOME", below="goose",
                  configuration=(
                      "config.yaml", "secrets.yaml", "permission.yaml", "permissions/", "recipes/",
                      ".goosehints", "custom_providers/",
                  )),
        AgentHome(path=".local/share/goose", variable="XDG_DATA_HOME", below="goose",
                  persistent=("sessions",)),
        AgentHome(path=".local/state/goose", variable="XDG_STATE_HOME", below="goose",
                  persistent=("logs",), persistent_files=("history.txt",)),
    ),
    env=("GOOSE_PROVIDER", "GOOSE_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    addresses=("OPENAI_HOST", "ANTHROPIC_HOST"),
)
# fmt: on
