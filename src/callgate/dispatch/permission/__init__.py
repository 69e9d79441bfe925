"""Questions to approvers, and remembered answers, for the authorize stage."""
