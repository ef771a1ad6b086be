"""What jobs answer: lines, reports, advice."""
