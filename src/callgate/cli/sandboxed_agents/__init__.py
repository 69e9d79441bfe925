"""`callgate sandbox -- COMMAND`: a program, such as a whole agent, inside our sandbox.

sandbox    what is around it, from the settings: a jail, a plan, an order
prepared   the same order again within a minute, without loading any of that
terminal_runs   starts it with our own terminal, and ends it with us
"""
