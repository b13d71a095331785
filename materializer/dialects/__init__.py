"""Decodes raw records into rows: one module per format or convention. Does not depend on the lake."""
