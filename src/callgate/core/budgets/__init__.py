"""Counting what budgets limit: `ledgers` is the arithmetic, `ops` what the store is asked."""
