"""Where a lake lies: its catalog and its files, in a folder or shared by several machines."""
