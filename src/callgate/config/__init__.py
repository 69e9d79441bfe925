"""Settings: their files (`home`), their keys (`schema`), and how they are read (`load`).

A file that cannot be read or understood is never used in part: `SettingsError` has the file,
the line and the problem, and nothing starts.
"""
