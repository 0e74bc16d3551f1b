"""Problems: synthetic families, registered public sets and JSON Lines files; ``sources`` loads all of them."""
