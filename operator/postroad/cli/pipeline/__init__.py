"""`postroad pipeline`: jobs over the lake and over the view."""
