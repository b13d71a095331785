"""One module per dialect of model calls. Each has the pure function `read(record)`.

It returns the whole conversation, or None if the record is not of the dialect. It raises Rejected with the reason if it cannot read a part.
"""
