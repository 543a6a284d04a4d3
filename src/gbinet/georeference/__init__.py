"""Georeferencing: a model's place on the map and its scale, from GPS, known positions or a length."""
