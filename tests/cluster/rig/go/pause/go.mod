module ratchet.test/rig/pause

go 1.25.0
