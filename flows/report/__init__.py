"""Reports for users: the text of a cycle, the HTML page and its charts. Reads the ledger and the artifacts; writes to neither."""
