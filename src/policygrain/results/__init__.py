"""What a study leaves on disk: every path, every record's type, and the only reader of both."""
