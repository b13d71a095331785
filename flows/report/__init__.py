"""What happened, for people: stories, the page, figures. Reads only the ledger and artifacts; changes nothing."""
