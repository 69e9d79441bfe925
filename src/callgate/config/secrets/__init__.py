"""Model keys and logins, encrypted where they are kept.

    keys, logins -> Secrets (read, update) -> SecretStore: files of the home
                        |                               or entries of a shared store
                        +-- sealing (AES-256-GCM) <-- key_ring <-- [secrets] key_env, key_command

Start at `opening.open_secrets`. `maintenance` does the work of `callgate keys encrypt`, `rotate`
and `status`. What is sealed is bound to its name: a ciphertext in the place of another is refused.
"""
