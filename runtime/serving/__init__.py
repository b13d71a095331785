"""The process side of the router and the receiver, each of which serves all lines of an installation in one process."""
