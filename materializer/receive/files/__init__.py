"""Files of sources: where they lie, what they contain, and how they are read as records."""
