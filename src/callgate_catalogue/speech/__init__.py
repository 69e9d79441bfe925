"""Speech output of a model on this machine.

`speaker` starts the speech program, `voice_options` has voice, rate and pitch, and `voice` is a
program."""
