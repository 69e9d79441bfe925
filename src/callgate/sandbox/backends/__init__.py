"""Enforcement of a jail: system calls, namespaces, Landlock, seccomp, control groups, bubblewrap.

The broker loads these modules without our dependencies: standard library only."""
