"""Ways in: each turns a wire into calls on the runtime, and decides nothing."""
