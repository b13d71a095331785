"""Commands that set up an installation and its lines: init, check, adopt, doctor, token."""
