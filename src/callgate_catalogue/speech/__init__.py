"""Speech output of a model on this machine.

`speaker` starts the speech program with voice, rate and pitch, and `voice` is a
program."""
