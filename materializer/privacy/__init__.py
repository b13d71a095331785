"""Privacy: finds personal data and secrets in texts and replaces them by placeholders, before a row is stored."""
