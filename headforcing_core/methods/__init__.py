"""Other ways to make long videos from the same models, one file for each method."""
