"""How a command is started and ended: broker, keeper, output, measuring.

Begin with `broker.py`. What the broker loads uses the standard library only."""
