"""Agents with a shell: coding tasks with injected instructions, on a real disk.

`corpus` reads the tasks and attacks (`corpus.toml`) and the texts of `inspect-evals`, `scene` is
the disk, the home and the listeners that effects are observed on, `runs` plays one pair.
"""
