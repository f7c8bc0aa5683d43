"""The second opinion on bundles."""
