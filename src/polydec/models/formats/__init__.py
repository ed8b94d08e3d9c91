"""Files of models: what they say, checked, and how their parts are called."""
