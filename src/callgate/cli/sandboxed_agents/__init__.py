"""`callgate sandbox -- COMMAND`: a program, such as a whole agent, inside our sandbox.

sandbox    what is around it, from the settings: a jail, a plan, an order
terminal_runs   starts it with our own terminal, and ends it with us
"""
