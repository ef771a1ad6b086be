"""Mail that programs hand over by requests of HTTP: the listeners of role http."""
