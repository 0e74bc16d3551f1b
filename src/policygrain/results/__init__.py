"""The results of a study on disk: all paths, the types of all records, and the only code that reads them."""
