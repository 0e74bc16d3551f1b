"""Problems: seven synthetic families and JSON Lines datasets, behind one door (``sources.load``)."""
