"""A harness for the dialects: real libraries call a model server on this machine, and what the dialects read is compared with its log."""
