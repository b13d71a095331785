"""One extension of each kind. From Ratchet, the modules import only `ratchet.extend`."""
