"""What a model says aloud, heard from this machine: `speaker` starts what speaks, `voice_options`
are its voice, rate and pitch, `voice` is a program."""
