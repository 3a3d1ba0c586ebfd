"""What evidence says: one file per artifact kind, pure functions from bytes to rows."""
