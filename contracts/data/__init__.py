"""Data pipeline: the columns of its tables, the result of reading a batch, and the control objects of datasets."""
