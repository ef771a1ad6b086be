"""Answers of jobs: lines, reports, advice."""
