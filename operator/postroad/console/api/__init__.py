"""Routes of the console: sessions, the guard before every request, the API and its description."""
