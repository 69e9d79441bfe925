"""What a model says aloud, heard from this machine: `speaker` starts what speaks, `manners` says
how it is to sound, `voice` is a program."""
