"""Arms of a study in other engines: their configuration, problems and reward function, written to a folder."""
