"""The objective: small pure functions over one batch type. Imports nothing else of this package."""
