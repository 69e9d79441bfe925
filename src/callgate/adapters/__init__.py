"""Adapters: the tools of an agent framework, behind a gate. Two lines in existing code.

    framework -> adapter (one module each) -> Guard.call -> dispatcher -> the framework's function

Start reading at `guard`: it is the same for all of them. Each other module translates one
framework and is imported by whoever uses that framework; `callgate` imports none of them.
"""
