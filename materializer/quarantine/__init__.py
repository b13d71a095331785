"""Quarantined records: their place and masked bytes, what is open, and the replay through today's decoder and admission."""
