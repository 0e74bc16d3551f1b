"""What a person looks at: evaluations in the terminal, pages of samples and of tokens."""
