"""What a running instance does for a command.

    handshake    finds an instance that takes the work     instance_states   how each one is
    connection   a blocking connection to one              hosts, tools      what it says of them
    call         `callgate call`, the fast path            confirmations     its questions

`call`, `handshake` and `connection` are light to import; `confirmations` and `results` are loaded
for what is not a plain result.
"""
