"""The history of changes to files, and taking them back."""
