"""Reports that come back to reverse-paths and to addresses for complaints."""
