"""What holds a jail: system calls, namespaces, Landlock, seccomp, control groups, bubblewrap.

The broker loads these without our dependencies: standard library only."""
