"""Composition root of the service: selects the implementation behind each port and builds the line contexts.

No layer below imports this package. It imports the other packages inside functions, because some of them take seconds to import.
"""
