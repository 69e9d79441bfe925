"""What commands read from the store and the audit log, and delete there."""
