"""Results of jobs: lines, reports, advice."""
