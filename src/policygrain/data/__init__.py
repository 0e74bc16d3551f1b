"""Problems: public sets, synthetic families and files; the data of a study, and its prompts."""
