"""One folder per outside system; each translates its driver's words and errors into ours."""
