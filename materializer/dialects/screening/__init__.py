"""Finds what must not be taken for a good answer: failed calls, redacted texts, lost parts, and one text that answers everything."""
