"""Settings: where they lie (`home`), what they may say (`schema`), how they are read (`load`).

A file that cannot be read or understood is never half used: `SettingsError` names the file,
the line and what is wrong, and nothing starts.
"""
