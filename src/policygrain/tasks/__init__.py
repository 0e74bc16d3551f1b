"""Problems: seven synthetic families, registered public sets and JSON Lines files, behind one door (``sources``)."""
